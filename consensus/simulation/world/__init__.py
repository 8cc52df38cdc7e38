"""Simulated machines: one virtual clock, a network, stores, and faults."""
