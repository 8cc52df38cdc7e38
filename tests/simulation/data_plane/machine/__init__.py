"""What the operating system is to a real process: threads, clock and the network, in virtual time."""
