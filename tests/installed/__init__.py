"""The package as users get it: built, installed into empty environments, and used there (``make dist``, ``make matrix``)."""
