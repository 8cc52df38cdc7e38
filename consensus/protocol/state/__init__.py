"""The state that the parts of a machine share, and their effects."""
