"""One call as plain values, and one attempt at it in one session."""
