"""``ftlib run``: workers of one host, started, watched, fenced, restarted and never left behind.

Reading order: ``plan`` (what is to run), ``ledger`` (what to do when a worker ends: pure), ``worker`` (one child),
``supervisor`` (the loop that owns all of them), ``guard`` (why nothing survives the launcher), ``fence`` (what peers
may ask), ``cli``.
Nothing here imports torch: the launcher is up before its workers have imported theirs.
"""

__all__: list[str] = []
