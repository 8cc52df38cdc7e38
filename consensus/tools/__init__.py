"""What looks at a member from outside: one authenticated GET, a diagnosis, and metrics."""
