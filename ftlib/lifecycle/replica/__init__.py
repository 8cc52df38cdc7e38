"""The processes of one replica: how they know of each other, and what they build for the program."""
