"""What a program registers as its state: the tree of it, as bytes, as live tensors, and as a snapshot."""
