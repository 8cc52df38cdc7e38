"""Backup workers: who takes part in the others' calls while a program is late."""
