"""What the parts of a machine share, and what they leave behind."""
