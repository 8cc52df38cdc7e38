"""The program's own gradients, while the others' averages are put in their place to be replayed."""

from __future__ import annotations

import torch

from ...core.calls.call import Call
from ...core.tensors.device_copies import assign, duplicate


class ProgramGradients:
    """What the program's backward left in the gradients of its call, for the case that the call has no result (FAIL).

    Only gradients of parameters: other tensors that a program averages may be a part of the state that it registered.
    """

    def __init__(self, call: Call) -> None:
        """Copies them; on devices that is enqueued."""
        owners = list(call.owners)[: len(call.sources)]
        self._call = call
        self._parameters = {index: owner for index, owner in enumerate(owners) if isinstance(owner, torch.nn.Parameter)}
        self._copies = {index: duplicate(each) for index in self._parameters if (each := call.sources[index]) is not None}

    def put_back(self) -> None:
        """Write them to where they were; on devices that is enqueued. Parameters that had none have none again."""
        sources = list(self._call.sources)
        with torch.no_grad():
            for index, parameter in self._parameters.items():
                target, copy = sources[index], self._copies.get(index)
                if copy is None:
                    sources[index] = parameter.grad = None
                elif target is not None:
                    with torch.inference_mode(target.is_inference()):
                        assign(target, copy)
        self._call.supply(sources)
        self._call.reattach()
