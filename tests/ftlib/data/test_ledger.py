"""The ledger of an epoch as it is read: in order, and entry by entry."""

from __future__ import annotations

import itertools
import random
import tracemalloc

from ftlib.data.dealing.ledger import Entry, Ledger


def test_entries_are_told_in_the_order_of_steps_and_members() -> None:
    """Of steady members, of one that comes and goes, of calls that granted nothing; those so far, also once it was stored."""
    chance, ledger, added, position = random.Random(3), Ledger(0), list[Entry](), 0
    step = 0
    for call in range(10_000):
        granted = call % 50 != 7
        step += granted
        for member in ("w10", "w2", "w1"):
            if member == "w1" and call // 100 % 2:
                continue
            pieces = []
            for _ in range(chance.choice((1, 1, 1, 2))):
                size = 4 if chance.random() < 0.9 else 3
                pieces.append((position, position + size))
                position += size
            ledger.add(step, member, pieces, granted=granted)
            added += [Entry(step, member, granted, *piece) for piece in pieces]
    expected = sorted(added, key=lambda entry: (entry.step, entry.member))
    told = iter(ledger)
    ledger.add(step + 1, "w3", [(position, position + 4)], granted=True)
    assert list(told) == expected
    assert list(Ledger.of(ledger.state()))[:-1] == expected
    assert not list(Ledger(0))


def test_it_is_expanded_as_it_is_read() -> None:
    """Millions of entries at once take hundreds of megabytes, and a second under the lock that draws need."""
    ledger = Ledger(0)
    for step in range(50_000):
        for rank in range(4):
            start = (step * 4 + rank) * 32
            ledger.add(step, f"w{rank}", [(start, start + 32)], granted=True)
    tracemalloc.start()
    try:
        first = list(itertools.islice(ledger, 1000))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert [entry.start for entry in first] == [32 * index for index in range(1000)]
