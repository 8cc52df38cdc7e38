"""Backup workers: a deputy takes part in the others' calls while a program is late."""
