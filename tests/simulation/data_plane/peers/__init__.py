"""What the processes of a simulated job give each other beside calls."""
