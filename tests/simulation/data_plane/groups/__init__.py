"""Simulated process groups: their operations, how they are built, how long they take."""
