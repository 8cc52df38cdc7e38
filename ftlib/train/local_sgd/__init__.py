"""``LocalSGD`` and ``DiLoCo``: workers that train on their own for many steps, and average seldom.

Begin with ``wrappers``, which is what programs see. ``schedule`` says when which part of the model is averaged, ``rounds``
carries that out; ``global_model`` has the weights that all workers share, ``outer`` the optimizers that step them.
"""

from .wrappers import DiLoCo, LocalSGD

__all__ = ["DiLoCo", "LocalSGD"]
