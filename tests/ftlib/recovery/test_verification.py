"""The comparison at the end of a recovery: all of what was replayed, and what comes anew besides."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from ftlib.recovery.joiner import verification
from ftlib.recovery.joiner.http_transport import FetchError, Later
from ftlib.recovery.joiner.verification import Verification
from ftlib.recovery.layout.flat_state import FlatState
from ftlib.recovery.layout.shards import Shard, digest_of
from tests.harness.basics import TIMEOUT, around

SHARDS = (Shard(0, 0, 100, 7, ("b",)), Shard(1, 100, 360, 7, ("b",)), Shard(2, 360, 400, 7, ("b",)))


class Donor:
    """Of the state in ``data``."""

    def __init__(self, data: torch.Tensor) -> None:
        self._view = data.contiguous().view(torch.uint8).numpy().data
        self.inline = Mock(return_value=b"inline")

    def digest(self, _holder: str, _number: int, ranges: Sequence[tuple[int, int]], *_: object) -> list[bytes]:
        return [digest_of(self._view[start:stop]) for start, stop in ranges]


@pytest.fixture
def own() -> torch.Tensor:
    return torch.arange(100.0)


@pytest.fixture
def begun() -> Iterator[Any]:
    """Begins one of what a member has with what its donor has."""
    made: list[Verification] = []

    def begin(own: torch.Tensor, donor: Donor, *holders: str) -> Verification:
        round_ = Mock(flat=FlatState([own], ["weight"]), shards=SHARDS, transport=donor)
        session = Mock()
        session.plan.holders = holders
        made.append(Verification(round_, session, 7, lambda: True))
        made[-1].begin()
        return made[-1]

    yield begin
    for each in made:
        each.close()


@pytest.mark.parametrize("holders", ["b", "bc", "bcde"])
def test_every_byte_counts_whoever_compares_it(begun: Any, own: torch.Tensor, holders: str) -> None:
    theirs = own.clone()
    assert begun(own, Donor(theirs), *holders).holds()
    for index in (0, 60, 99):
        theirs[index] += 1
        assert not begun(own, Donor(theirs), *holders).holds(), f"of element {index}"
        theirs[index] -= 1


def test_who_is_not_in_that_call_yet_is_asked_again(begun: Any, own: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_PAUSE", 0.0)
    donor, later = Donor(own), Later("not in that call yet")
    digest, answers = donor.digest, iter([later, later, None])

    def ask(*about: Any) -> list[bytes]:
        if (error := next(answers)) is not None:
            raise error
        return digest(*about)

    monkeypatch.setattr(donor, "digest", ask)
    assert begun(own, donor, "b").holds()


def test_what_is_inline_has_to_be_there_as_well(begun: Any, own: torch.Tensor) -> None:
    """Else the recovery would end before it is taken over, and the error in the program."""
    donor = Donor(own)
    donor.inline.side_effect = FetchError("b: broke off")
    with pytest.raises(FetchError, match="broke off"):
        begun(own, donor, "b").holds()


def test_what_has_no_views_is_read_in_units(begun: Any, own: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device: a large state must not be in memory once more for each who compares a part of it."""
    monkeypatch.setattr(verification, "_UNIT", 64)
    read: list[int] = []

    @around(monkeypatch, FlatState, "copy_out")
    def copy_out(usual: Any, flat: FlatState, start: int, stop: int, into: torch.Tensor) -> None:
        read.append(into.untyped_storage().nbytes())
        usual(flat, start, stop, into)

    strided = torch.stack([own, own], dim=1)[:, 0]
    assert begun(strided, Donor(own), "b", "c").holds()
    assert set(read) == {64}
    assert len(read) == sum(-(-(shard.stop - shard.start) // 64) for shard in SHARDS)


def test_once_it_is_over_nobody_asks_any_more_and_nobody_waits_for_who_is_asked(begun: Any, own: torch.Tensor) -> None:
    asked, answer = threading.Event(), threading.Event()

    def inline(*_: object) -> bytes:
        asked.set()
        assert answer.wait(TIMEOUT / 8)
        return b""

    donor = Mock(inline=inline)
    donor.digest.side_effect = Later("not in that call yet")
    one = begun(own, donor, "b")
    assert asked.wait(TIMEOUT)
    one.close()
    assert not one._rest.done()
    answer.set()
    [theirs] = one._theirs
    assert "nobody waits for it" in str(theirs.exception(TIMEOUT / 8))
    for thread in one._pool._threads:
        thread.join(TIMEOUT / 8)
        assert not thread.is_alive()
