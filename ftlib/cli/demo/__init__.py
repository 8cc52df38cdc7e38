"""``ftlib demo``: real training, real kills, and a report on the promises.

Reading order: ``task`` (the model and data), ``trainer`` (the worker: an ordinary ``ftlib run`` script that also takes
notes), ``crew`` (the processes), ``timeline`` (what has happened so far), ``schedule`` (the faults, and when they come),
``reference`` (the undisturbed run), ``report`` (the promises), ``live`` and ``plot`` (all output), ``main``.
"""
