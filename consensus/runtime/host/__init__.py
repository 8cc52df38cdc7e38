"""Where an agent runs: in a process of its own or on a thread, and the border to it."""
