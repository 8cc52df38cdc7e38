"""Settings: where they come from, how they are read, and what they become."""
