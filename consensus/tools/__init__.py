"""Tools that look at a member from outside: one authenticated GET, a diagnosis, and metrics."""
