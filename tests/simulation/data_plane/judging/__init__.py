"""What is promised, checked at each call."""
