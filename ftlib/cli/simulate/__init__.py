"""``ftlib simulate``: the protocol under faults in virtual time, every checker on, and a picture of members' views over time.

``order`` has the command line's values, ``run`` plays it, ``progress`` shows how far it is, ``account`` reports what happened,
``rows`` and ``picture`` draw it, and ``main`` puts them together.
"""
