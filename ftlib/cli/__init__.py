"""The command ``ftlib`` and what it shows."""
