"""An open call: an average that is entered when its first bucket is complete, in the middle of backward, and finished later.

For the plane it is one numbered call like any other. While it is open the program computes: the others see it so, as they do in
a unit (see ``execute.unit``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..tensors.layout import Bucket, Layout
from ..tensors.staging import Slot
from ..tensors.targets import gradient_to_write
from .call import Call, Kind


class OpenCall(Call):
    """One average of gradients that come bucket by bucket. Used by the training thread."""

    def __init__(
        self,
        layout: Layout,
        owners: Sequence[torch.Tensor],
        *,
        weight: float,
        by_samples: bool,
        batches: int,
        veto: bool,
        views: bool,
        relaid: Callable[[], Layout],
        name: Callable[[int], str],
        remark: Callable[[], str],
        norms: bool = False,
        draws_beside: int = 0,
        keeps_batches: bool = False,
    ) -> None:
        """``owners``: the parameters, by the indices of ``layout``. ``views``: the gradients become views of the result.
        ``relaid``: returns the layout after registered state was loaded, which holds the agreed order of the parameters. The
        rest: see ``Call``.
        """
        super().__init__(
            Kind.AVERAGE,
            layout,
            [None] * len(owners),
            owners=owners,
            weight=weight,
            by_samples=by_samples,
            batches=batches,
            divide=True,
            veto=veto,
            views=views,
            norms=norms,
            name=name,
            remark=remark,
        )
        self.by_samples = by_samples
        self.draws_beside = draws_beside
        self.keeps_batches = keeps_batches
        self._relaid = relaid
        self._ahead: dict[int, tuple[torch.Tensor, int]] = {}
        """By index: gradients that were staged before the rest of their bucket, each with its version then."""

    def draws_no_more(self) -> None:
        """Nothing more is drawn beside it."""
        self.draws_beside = 0

    def provide(self, bucket: Bucket) -> None:
        """The gradients of this bucket are complete: they are this member's inputs."""
        sources, owners = self.sources, self.owners
        for index in bucket.indices:
            sources[index] = gradient_to_write(owners[index])

    def stage(self, slot: Slot, index: int, assumed: float) -> None:
        """Stage the gradient of one parameter, which is whole in this bucket, before the others are complete: just now it is in
        the processor's cache, and later it would have to be read from memory. ``assumed``: see ``fill``.
        """
        gradient, view = gradient_to_write(self.owners[index]), slot.views[slot.bucket.indices.index(index)]
        scale = self.weight / assumed
        if type(gradient) is torch.Tensor and gradient.dtype is view.dtype and scale and not gradient.is_inference():
            torch.mul(gradient, scale, out=view)
            self._ahead[index] = gradient, gradient._version  # noqa: SLF001 - the only way to ask

    def ahead(self, bucket: Bucket) -> set[int]:
        """The tensors of this bucket that were staged, and have not changed since."""
        found = set()
        for index in bucket.indices if self._ahead else ():
            gradient, version = self._ahead.get(index, (None, 0))
            if gradient is not None and self.sources[index] is gradient and gradient._version == version:  # noqa: SLF001
                found.add(index)
        return found

    def provide_all(self) -> None:
        """All gradients are complete, and must stay as they are from now on.

        Their versions count only now: until then no member can finish the call, and gradients that are views of one buffer
        share one version, while backward still adds to some of them.
        """
        self.supply([gradient_to_write(owner) for owner in self.owners])

    def reloaded(self) -> None:
        """See ``Call``: the loaded state has the agreed order of the parameters as well."""
        super().reloaded()
        self.relay()

    def relay(self) -> None:
        """See ``Call``."""
        self.layout = self._relaid()
