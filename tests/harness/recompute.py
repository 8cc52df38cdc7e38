"""Activation checkpointing in threads of one process."""

from __future__ import annotations

import functools

from torch.utils.checkpoint import checkpoint

recompute = functools.partial(checkpoint, preserve_rng_state=False)
"""``torch.utils.checkpoint.checkpoint`` without a look at torch's random state. Two threads that read that hang for ever, with
the interpreter's lock, where Python's collector begins in one of them meanwhile (torch 2.13: the state is wrapped for Python
while the generator's mutex is held)."""
