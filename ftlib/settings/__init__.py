"""Settings: their sources, their readers, and the resulting values."""
