"""From a program's tensors to flat buckets and back: layout, dtypes, staging memory, and the trailer."""
