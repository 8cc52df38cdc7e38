"""Live recovery: a worker that joins gets the state beside the training, without stopping the others.

The joiner *follows*: inside its first call it takes part in the others' calls with weight 0 (``ftlib.following``), while it
fetches the state on entry to one of them, cut in stripes, from several donors, and replays the averages since then.
``stripes`` says who gives what (a pure function), ``manifest`` what travels, ``flat`` where the bytes lie, ``pins`` how a donor
keeps a version while it trains on, ``donor`` and ``fetch`` are the two ends of HTTP, ``post`` those of the process group,
``catchup`` puts it together at the joiner.
"""
