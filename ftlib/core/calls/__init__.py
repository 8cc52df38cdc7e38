"""A call as plain values, and an attempt at a call in one session."""
