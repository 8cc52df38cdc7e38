"""Helpers that every layer may use: clocks and threads, log fields, counters, units, memory."""
