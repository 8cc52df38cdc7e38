"""``ftlib run`` of one host: what is to run (``plan``), what follows an exit (``restarts``), the loop (``supervisor``)."""
