"""What the training thread writes for the agent: of a torn value the one before is read, of a commitment never."""

from __future__ import annotations

import os

from consensus.progress import NOWHERE, Progress
from consensus.runtime.host.progress_cell import ProgressCell

PLACE = Progress(6, 7, 8.5, busy=True, inner=9)


def pair() -> tuple[ProgressCell, ProgressCell]:
    """The writer's and the reader's."""
    writer, fd = ProgressCell.shared()
    return writer, ProgressCell.open(fd)


def tear(writer: ProgressCell) -> None:
    """The writer is held up in the middle of a value."""
    writer._memory[:8] = (writer._sequence + 1).to_bytes(8, "little")


def test_a_reader_sees_what_was_written() -> None:
    writer, reader = pair()
    assert reader.read() == NOWHERE
    writer.write(PLACE)
    assert reader.read() == PLACE


def test_of_a_torn_value_the_one_before_is_read() -> None:
    writer, reader = pair()
    writer.write(PLACE)
    reader.read()
    tear(writer)
    assert reader.read() == PLACE


def test_a_commitment_stays_whatever_is_written_after_it() -> None:
    for writer, reader in (pair(), (cell := ProgressCell(), cell)):
        writer.commit_to_leave()
        writer.write(PLACE)
        assert reader.read() == Progress(6, 7, 8.5, busy=True, leaving=True, inner=9)


def test_a_commitment_is_read_though_the_writer_is_held_up_in_its_next_value() -> None:
    """The reader has not looked between the two: the value before knows nothing of it."""
    writer, reader = pair()
    writer.write(PLACE)
    reader.read()
    writer.commit_to_leave()
    tear(writer)
    assert reader.read() == Progress(6, 7, 8.5, busy=True, leaving=True, inner=9)


def test_a_reader_never_sees_a_value_that_nobody_wrote() -> None:
    """Not even of zeros, with another process that writes as fast as it can."""
    writer, fd = ProgressCell.shared()
    reader = ProgressCell.open(fd)
    pid = os.fork()
    if pid == 0:
        for number in range(1, 200_000):
            writer.write(Progress(number, number, float(number), busy=True, inner=number))
        os._exit(0)
    seen, ended = [0], False
    while not ended:
        ended = os.waitpid(pid, os.WNOHANG)[0] == pid
        for _ in range(1000):
            place = reader.read()
            assert place.finished == place.current == place.since == place.inner
            if place.finished != seen[-1]:
                seen.append(place.finished)
    assert seen == sorted(seen) and seen[-1] == 199_999
