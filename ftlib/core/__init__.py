"""The data plane: one member's calls, from the program's tensors to the group's result, whatever happens to the others."""
