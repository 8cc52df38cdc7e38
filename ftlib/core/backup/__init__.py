"""Backup workers: each takes part in the others' calls while its own worker's program is late."""
