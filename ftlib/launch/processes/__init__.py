"""What one host's processes need: started, read, killed, reaped and never left behind. Nothing here decides what shall run."""
