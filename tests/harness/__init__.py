"""What the tests with real processes have in common."""
