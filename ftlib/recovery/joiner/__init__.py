"""The joiner's side: a member gets the state while it follows the others' calls."""
