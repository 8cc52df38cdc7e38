"""What a ``Manager`` is made of: where its replica meets the others, which process of it this is, and the calls of a step."""
