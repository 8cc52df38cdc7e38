"""What one member's data plane is doing, and how its group is rebuilt."""
