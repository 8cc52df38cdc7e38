"""Starts workers, watches, fences and restarts them, and leaves nothing behind.

Rooms: ``run`` is ``ftlib run`` of one host, and decides; ``processes`` owns the processes of one host, for whoever decides.
Nothing here imports torch: the launcher is up before its workers have imported theirs.
"""
