"""``DistributedDataParallel``: torch's wrapper of a model, whose averages survive the loss of workers.

Begin with ``wrapper``, which is what programs see. A backward pass is in ``backward``: it counts gradients down (``countdown``)
in buckets of the order that the members agreed on (``ready_order``).
"""

from .wrapper import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
