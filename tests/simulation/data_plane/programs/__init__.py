"""The programs that simulated processes run."""
