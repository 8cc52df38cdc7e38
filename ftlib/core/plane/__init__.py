"""The data plane of one member: its state, its transitions, and how its group is rebuilt."""
