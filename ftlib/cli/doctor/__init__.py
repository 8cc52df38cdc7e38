"""``ftlib doctor``: what is wrong between this host and another one (``network``), and with its GPUs (``host``, ``gpus``).

``main`` puts both together for the command.
"""
