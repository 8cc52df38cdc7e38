"""The command ``ftlib`` and its output."""
