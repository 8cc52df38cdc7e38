"""Which hosts there are (``names``), and the command that starts an agent there (``transport``)."""
