"""The side that gets the state while it follows the others' calls."""
