"""``ftlib demo``: real training, real kills, and a report on what was promised.

Reading order: ``task`` (what is trained), ``trainer`` (the worker: an ordinary ``ftlib run`` script that also takes
notes), ``record`` (the notes), ``crew`` (the processes), ``timeline`` (what has happened so far), ``story`` (what to do
to them, and when), ``live`` (what is shown meanwhile), ``reference`` (the undisturbed run), ``report`` (the promises),
``telling`` and ``plot`` (the same for people), ``main``.
"""

__all__: list[str] = []
