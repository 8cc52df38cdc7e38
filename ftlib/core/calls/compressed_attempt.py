"""One attempt at an average that is compressed.

The head has no data, and goes first: its trailer has the sum of the weights. So contributions are divided by that as they are
staged, and what is added up in few bits is the average, which is of a gradient's size whatever the weights are. As no data is
sent before the head has ended, members whose compression differs are found out in time.
"""

from __future__ import annotations

from ..tensors.trailer import RankRecord, Trailer
from .attempt import Attempt
from .call import Results


class CompressedAttempt(Attempt):
    """See ``Attempt``."""

    def run(self, record: RankRecord, in_flight: int) -> tuple[Trailer, Results]:
        """See ``Attempt.run``."""
        session, layout, window = self._session, self._call.layout, self._window
        assert session.group is not None
        slots = [self._begin_head(session.group, record)]
        self._reap()
        trailer = self._trailer
        assert trailer is not None
        self._assumed = trailer.divisor
        for number in range(1, len(layout.buckets)):
            if len(window) == max(in_flight, layout.stages):  # a bucket may wait for as many others to be begun
                self._reap()
            slot = self._filled(number)
            window.append((self._begin_operations(number, slot), slot))
            slots.append(slot)
        while window:
            self._reap()
        return self._ended(slots)
