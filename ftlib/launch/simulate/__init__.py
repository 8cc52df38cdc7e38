"""``ftlib simulate``: the protocol under faults in virtual time, with every checker on, and a picture of who believed what when.

``main`` runs histories, ``live`` shows how far they are, ``summary`` says what happened, ``rows`` and ``picture`` draw it.
"""
