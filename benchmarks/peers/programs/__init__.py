"""The same training loop, written for each system as its own documents show it."""
