"""Checkpoints: a directory each, complete or not there at all, so that a job that died whole comes back.

``names`` says what they are called and which is the newest, ``manifest`` what is in one and whether it is intact, ``tensors``
reads and writes tensors by ``torch.distributed.checkpoint``, ``checkpoint`` puts these together, and ``keeper`` writes beside
the training.
"""

from __future__ import annotations
