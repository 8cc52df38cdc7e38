"""``ftlib demo``: real training, real kills, and a report on what was promised.

Reading order: ``task`` (what is trained), ``trainer`` (the worker: an ordinary ``ftlib run`` script that also takes
notes), ``crew`` (the processes), ``timeline`` (what has happened so far), ``schedule`` (what to do to them, and when),
``reference`` (the undisturbed run), ``report`` (the promises), ``live`` and ``plot`` (all that is shown), ``main``.
"""
