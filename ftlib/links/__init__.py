"""Links between two members: messages in order each way, over TCP or memory that both share, and what became of them.

``ftlib.collective`` makes groups and channels of them. What is raised by all of it is here, in ``errors``.
"""
