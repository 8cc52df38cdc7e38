"""Checkpoints: one directory each, complete or not there at all, so that a job can go on after all its members died.

``names`` has the names and their order, ``manifest`` lists what is in a checkpoint and shows whether it is intact, ``tensors``
reads and writes tensors by ``torch.distributed.checkpoint``, ``checkpoint`` puts these together, and ``keeper`` writes beside
the training.
"""

from __future__ import annotations
