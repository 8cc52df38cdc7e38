"""Members that meet with one secret, with others, with none; and secrets that change while they run."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from consensus import ConfigError, JoinError, KeyRing, SecretError, Stream, get
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.fifo import hanging_for
from tests.harness.threads import no_threads

from .fake_core import rig, until
from .group import address, agree, begin, members
from .peer import ROOT
from .secret import OTHER, RING, SECRET, dropped


def secret_file(path: Path, *secrets: str) -> str:
    """Replaced as a whole, as ``ftlib keys`` does it."""
    part = path.with_suffix(".part")
    part.touch(0o600)
    part.write_text("# a comment\n\n" + "\n".join(secrets) + "\n")
    part.replace(path)
    return str(path)


@contextmanager
def hanging(path: Path) -> Iterator[None]:
    """Whoever reads the file waits until the end. Entered once somebody does."""
    part = path.with_suffix(".part")
    os.mkfifo(part, 0o600)
    part.replace(path)
    writers: list[int] = []

    def read() -> bool:
        with contextlib.suppress(OSError):  # ENXIO: nobody reads
            writers.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        return bool(writers)

    eventually(read, "somebody reads the file")
    try:
        yield
    finally:
        os.close(writers[0])


HANGS = """
import sys
from consensus import Config, Gossip, Home

member = Gossip(Config(secret_file=sys.argv[1], agent=Home.THREAD))
member.start()
member.seek_admission()
assert member.wait_view(120)
print("meets", flush=True)
sys.stdin.readline()
member.stop()
"""


class TestMeeting:
    def test_members_with_one_secret_meet(self) -> None:
        with members(3, secret=SECRET) as group:
            agree(group, 3)
            assert all(set(dropped(member)) <= {"unauthentic", "replayed"} for member in group)

    @pytest.mark.usefixtures("patient")
    @pytest.mark.parametrize(
        ("theirs", "ours", "text"),
        [
            (SECRET, OTHER, "the members there use another secret"),
            (SECRET, "", "the members there have a secret, this one has none"),
            ("", SECRET, "the member there has no secret, this one has"),
        ],
    )
    def test_without_it_a_joiner_is_told_why(self, theirs: str, ours: str, text: str) -> None:
        with members(1, secret=theirs or ()) as [member]:
            joiner = begin(introducers=(address(member),), job="test", secret=ours or (), join_timeout=0.5)
            eventually(lambda: joiner.stopped, "the joiner gives up")
            assert isinstance(joiner.stopped, JoinError)
            assert text in str(joiner.stopped)
            assert address(member) in str(joiner.stopped)
            joiner.stop()
            assert len(member.get_member_list()) == 1
            assert not member.report_join([address(member)])

    def test_it_says_so_long_before_it_gives_up(self, caplog: pytest.LogCaptureFixture) -> None:
        with members(1, secret=SECRET) as [member]:
            joiner = begin(introducers=(address(member),), job="test", secret=OTHER)
            eventually(lambda: "not let in so far" in caplog.text, "it says what keeps it out")
            assert f"not let in so far ({address(member)}: the members there use another secret" in caplog.text
            assert joiner.stopped is None
            joiner.stop()

    def test_a_member_that_restarts_at_its_address_is_met_again(self) -> None:
        with members(2, secret=SECRET) as group:
            agree(group, 2)
            place = address(group[1])
            group[1].stop()
            agree(group[:1], 1)
            group[1] = begin(introducers=(address(group[0]),), job="test", initial_size=2, secret=SECRET, bind=place)
            group[1].seek_admission()
            agree(group, 2)

    def test_keys_rotate_without_a_stop(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        path = tmp_path / "secret"
        with members(2, secret_file=secret_file(path, SECRET)) as group:
            agree(group, 2)
            with caplog.at_level(logging.WARNING, "ftlib.consensus"):
                for number, step in enumerate(([SECRET, OTHER], [OTHER, SECRET], [OTHER]), start=1):
                    secret_file(path, *step)
                    eventually(lambda number=number: caplog.text.count("key ring has changed") == 2 * number, "both follow")
                path.write_text("")
                eventually(lambda: caplog.text.count("keys stay as they were") == 2, "both complain")
            assert agree(group, 2).epoch == 1
            with get(group[0].member.address, "/status", KeyRing([OTHER])) as answer:
                assert answer.status == 200
            with pytest.raises(SecretError):
                get(group[0].member.address, "/status", RING)
            assert OTHER not in caplog.text

    def test_a_file_that_hangs_holds_up_no_stream(self, tmp_path: Path) -> None:
        path = tmp_path / "secret"
        with members(2, secret_file=secret_file(path, SECRET)) as group:
            agree(group, 2)
            arrived: queue.Queue[Stream] = queue.Queue()
            group[1].accept("/stream", arrived.put)
            with hanging(path):
                stream = group[0].dial(group[1].member, "/stream", timeout=TIMEOUT)
                with stream.socket, arrived.get(timeout=TIMEOUT).socket:
                    assert agree(group, 2).epoch == 1

    @pytest.mark.process
    def test_a_file_that_hangs_keeps_no_program_from_its_end(self, tmp_path: Path) -> None:
        """Nothing can end a thread in such a call, and the interpreter would wait for one that is no daemon."""
        path = tmp_path / "secret"
        started = [sys.executable, "-c", HANGS, secret_file(path, SECRET)]
        with subprocess.Popen(started, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
            try:
                assert program.stdout is not None
                assert program.stdout.readline() == "meets\n"
                with hanging(path):
                    program.communicate("go on\n", TIMEOUT)
                    assert program.returncode == 0
            finally:
                program.kill()

    def test_beyond_loopback_a_secret_is_needed(self) -> None:
        with pytest.raises(ConfigError, match=r"reachable from other hosts.*secret.*insecure=True"):
            begin(bind="0.0.0.0:0")
        for settings in ({"insecure": True}, {"secret": SECRET}):
            begin(bind="0.0.0.0:0", **settings).stop()


class TestFiles:
    @pytest.mark.parametrize(
        ("text", "mode", "complaint"),
        [
            (SECRET, 0o644, "chmod 600"),
            (SECRET, 0o660, "chmod 600"),
            (SECRET, 0o601, "chmod 600"),
            ("# nothing\n", 0o600, "ftlib keys new"),
            ("short\n", 0o600, "5 bytes is too short"),
            ("".join(f"{SECRET} {number}\n" for number in range(17)), 0o600, "17 secrets, 16 are the most: ftlib keys drop"),
            (None, 0, "cannot be read"),
        ],
    )
    def test_what_cannot_be_used_is_said_at_the_start(
        self, tmp_path: Path, text: str | None, mode: int, complaint: str
    ) -> None:
        path = tmp_path / "secret"
        if text is not None:
            path.write_text(text)
            path.chmod(mode)
        with pytest.raises(ConfigError, match=complaint) as error:
            begin(secret_file=str(path))
        assert SECRET not in str(error.value)

    def test_a_bad_file_keeps_the_ring(self, tmp_path: Path) -> None:
        path = tmp_path / "secret"
        ring = KeyRing((), secret_file(path, SECRET))
        assert ring.renew() is None
        first = ring.first.id
        path.unlink()
        line = ring.renew()
        assert line is not None
        assert "the keys stay as they were" in line
        assert ring.renew() is None  # said once
        assert ring.first.id == first
        secret_file(path, OTHER, SECRET)
        line = ring.renew()
        assert line is not None
        assert OTHER not in line
        assert ring.first.id != first

    def test_a_ring_waits_a_moment_for_a_file_that_hangs_and_follows_it_later(self, tmp_path: Path) -> None:
        path = tmp_path / "secret"
        ring = KeyRing((), secret_file(path, SECRET))
        with hanging_for(path):
            for within in (TIMEOUT, math.inf, 0.0):
                began = time.monotonic()
                assert ring.follow(within) is None
                assert time.monotonic() - began < TIMEOUT / 4
            looks = [thread for thread in threading.enumerate() if thread.name == "ftlib-keys"]
            assert len(looks) == 1, "one at a time"
        looks[0].join(TIMEOUT)
        secret_file(path, OTHER, SECRET)
        lines: list[str | None] = []
        eventually(lambda: lines.append(ring.follow()) or len(ring.keys) == 2, "it follows")
        assert any(line is not None and "the key ring has changed" in line for line in [*lines, ring.follow()])

    def test_a_stream_without_a_thread_for_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "secret"
        with members(2, secret_file=secret_file(path, SECRET)) as group:
            agree(group, 2)
            arrived: queue.Queue[Stream] = queue.Queue()
            group[1].accept("/stream", arrived.put)
            with no_threads("ftlib-keys") as refused:
                stream = group[0].dial(group[1].member, "/stream", timeout=TIMEOUT)
            with stream.socket, arrived.get(timeout=TIMEOUT).socket:
                assert refused

    @pytest.mark.parametrize("mode", [0o400, 0o440, 0o640])
    def test_its_group_may_read_it(self, tmp_path: Path, mode: int) -> None:
        """Kubernetes mounts a secret so where the pod has an ``fsGroup``."""
        path = Path(secret_file(tmp_path / "secret", SECRET))
        path.chmod(mode)
        assert KeyRing((), path).first.id == RING.first.id

    async def test_too_many_secrets_do_not_end_the_following(self, tmp_path: Path) -> None:
        path = tmp_path / "secret"

        async with rig(secret_file=secret_file(path, SECRET)) as member:
            secret_file(path, *(f"{SECRET} {number}" for number in range(17)))
            await until(lambda: any("the keys stay as they were" in note for note in member.notes))
            secret_file(path, OTHER)
            await until(lambda: any(f"seals with {KeyRing([OTHER]).first.id.hex()}" in note for note in member.notes))
