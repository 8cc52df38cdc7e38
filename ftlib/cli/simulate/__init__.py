"""``ftlib simulate``: the protocol under faults in virtual time, every checker on, and a picture of who believed what when.

``order`` is what was asked for, ``run`` plays it, ``progress`` shows how far it is, ``account`` says what happened, ``rows``
and ``picture`` draw it, and ``main`` puts them together.
"""
