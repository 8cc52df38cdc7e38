"""Joining, leaving and founding."""
