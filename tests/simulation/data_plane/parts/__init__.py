"""What a simulated process is made of: its door to the agent, its device."""
