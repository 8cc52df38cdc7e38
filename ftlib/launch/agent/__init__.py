"""What runs at each host of a launch: the agent (``agent``), the warm process that forks workers (``warm``), and how a worker
that was forked begins and ends (``child``). Started by a fixed command; all else comes through its stdin.
"""
