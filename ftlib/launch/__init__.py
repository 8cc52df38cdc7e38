"""``ftlib run``: workers of one host, started, watched, fenced, restarted and never left behind.

Reading order: ``plan`` (what is to run), ``restarts`` (what to do when a worker ends: pure), ``worker`` (one child),
``supervisor`` (the loop that owns all of them), ``guard`` (why nothing survives the launcher), ``endpoint`` (requests that
workers may send).
Nothing here imports torch: the launcher is up before its workers have imported theirs.
"""
