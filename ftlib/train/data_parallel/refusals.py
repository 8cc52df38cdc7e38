"""Arguments and methods of torch's ``DistributedDataParallel`` that cannot work here, and what to do instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError

_REMEDIES = {
    "device_ids": "move the module to its device before it is wrapped, and its inputs before forward: leave it out",
    "output_device": "outputs stay where the module computes them: leave it out",
    "dim": "inputs are not scattered over devices: leave it out",
    "process_group": "the group is that of FTLib, and changes when workers come and go: leave it out",
    "bucket_cap_mb": "the size of buckets is bucket_mb=",
    "bucket_cap_mb_list": "the sizes of buckets are first_bucket_mb= and bucket_mb=",
    "check_reduction": "torch ignores it as well: leave it out",
    "gradient_predivide": "gradients are weighted by weigh(), and divided by the sum of the weights: leave it out",
    "gradient_predivide_factor": "gradients are weighted by weigh(), and divided by the sum of the weights: leave it out",
    "mixed_precision": "use torch.autocast in the program, and compression= for what is sent",
    "init_sync": "register_state(model=...) gives all workers the same weights: leave it out",
    "delay_all_reduce_named_params": "all gradients are averaged in one step, which all workers take or none: leave it out",
    "param_to_hook_all_reduce": "all gradients are averaged in one step, which all workers take or none: leave it out",
    "skip_all_reduce_unused_params": "use find_unused_parameters=True",
}
"""By argument."""


def refuse(arguments: Mapping[str, Any]) -> None:
    """ConfigError naming the first of the arguments that this wrapper does not have, with the remedy if torch's has it."""
    for name in arguments:
        if name not in _REMEDIES:
            raise ConfigError(f"DistributedDataParallel has no argument {name}=")
        raise ConfigError(f"DistributedDataParallel: {name}= cannot work with workers that come and go: {_REMEDIES[name]}")
