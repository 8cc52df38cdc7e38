"""Small parts of the launcher: names of hosts, commands, messages behind noise."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgpack
import pytest

from ftlib import ConfigError
from ftlib.common.processes import describe_exit
from ftlib.launch.agent.records import Record, Records
from ftlib.launch.director.decisions.hosts import Loss
from ftlib.launch.director.losses import loss_of, with_later_remedy, with_remedy
from ftlib.launch.hosts.names import DISCOVERY, Discovery, HostsFile, expand_nodes, parse_host, parse_hosts, slurm_hosts
from ftlib.launch.hosts.transport import Transport
from ftlib.launch.processes.worker import Paused
from ftlib.launch.stream.messages import Decoder, Ended, Greeted, Lines, Piece, StreamError, encode, greeting, release
from tests.harness.basics import eventually


@pytest.mark.parametrize(
    ("text", "host", "slots"),
    [("node1", "node1", None), ("me@node1:4", "me@node1", 4), ("[fd00::1]:2", "fd00::1", 2), ("fd00::1", "fd00::1", None)],
)
def test_names_of_hosts(text: str, host: str, slots: int | None) -> None:
    assert parse_host(text) == (host, slots)


@pytest.mark.parametrize("text", ["-oProxyCommand=x", "two words", "", "a:b"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no host"):
        parse_host(text)


def test_files_of_hosts() -> None:
    assert parse_hosts(["# all", "a:2", "", "b  # one", "c slots=3"]) == {"a": 2, "b": None, "c": 3}
    with pytest.raises(ConfigError, match="twice"):
        parse_hosts(["a", "a:2"])


def test_discovery_says_what_went_wrong() -> None:
    assert Discovery(f"{sys.executable} -c \"print('a:2'); print('b')\"")() == {"a": 2, "b": None}
    with pytest.raises(ConfigError, match="failed with 3: why"):
        Discovery(f"{sys.executable} -c \"import sys; sys.stderr.write('why'); sys.exit(3)\"")()
    with pytest.raises(ConfigError, match="cannot be run"):
        Discovery("/nowhere/at/all")()


def test_a_discovery_that_says_none_is_not_believed_once_there_were_some(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("")
    command = Discovery(f"cat {tmp_path / 'hosts'}")
    assert command() == {}
    (tmp_path / "hosts").write_text("a:1\n")
    assert command() == {"a": 1}
    (tmp_path / "hosts").write_text("# all are ill\n")
    with pytest.raises(ConfigError, match="names no host"):
        command()


def test_what_a_discovery_leaves_behind_is_not_waited_for(tmp_path: Path) -> None:
    """As a connection that ssh shares does: it has the command's stderr, and a session of its own."""
    left = tmp_path / "left"
    began = time.monotonic()
    try:
        command = Discovery(f"sh -c 'setsid sleep 1000 & echo $! > {left}; echo a:2'")
        assert command() == {"a": 2}
        assert time.monotonic() - began < DISCOVERY
    finally:
        os.kill(int(left.read_text()), signal.SIGKILL)


def test_closing_ends_a_discovery_that_hangs(tmp_path: Path) -> None:
    command = Discovery(f"sh -c 'touch {tmp_path / 'begun'}; exec sleep 1000'")
    with ThreadPoolExecutor() as pool:
        look = pool.submit(command)
        eventually((tmp_path / "begun").exists, "the command runs")
        command.close()
        with pytest.raises(ConfigError, match="failed with -9"):
            look.result(60)


def test_a_file_that_is_being_written_is_followed_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("node1:2\nnode2:2\n")
    hosts = HostsFile(path)
    before = hosts()
    for part in ("", "node1:2\nno", "node1:2\nnode3"):  # an editor writes it, while somebody looks
        path.write_text(part)
        assert hosts() == before == {"node1": 2, "node2": 2}
    path.write_text("node1:2\nnode3:2\n")
    assert hosts() == before
    assert hosts() == {"node1": 2, "node3": 2}
    path.write_text("")
    hosts()
    with pytest.raises(ConfigError, match="names no host"):
        hosts()
    path.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        hosts()


def test_slurms_short_lists() -> None:
    assert expand_nodes("n[1-3,07],login,x[09-10]-ib") == ["n1", "n2", "n3", "n07", "login", "x09-ib", "x10-ib"]
    assert slurm_hosts({"SLURM_JOB_NODELIST": "n[1-2]"}) == ["n1", "n2"]
    with pytest.raises(ConfigError, match="no Slurm allocation"):
        slurm_hosts({})


def test_commands_are_fixed_text(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.touch()
    ssh = Transport("auto", "/py", ssh_config=config)
    agent = ["/py", "-P", "-m", "ftlib.launch.agent"]
    assert ssh.command("node1", {}) == ["ssh", "-T", "-o", "BatchMode=yes", "-F", str(config), "--", "node1", " ".join(agent)]
    assert "ConnectTimeout=3" in ssh.command("node1", {}, again=True)
    assert ssh.command("localhost", {}) == agent
    assert ssh.command("n1", {"SLURM_JOB_ID": "7"})[:2] == ["srun", "--overlap"]
    assert Transport(["kubectl", "exec", "-i", "{host}", "--"], "/py").command("pod", {})[3:] == ["pod", "--", *agent]
    with pytest.raises(ConfigError, match=r"\{host\}"):
        Transport(["kubectl", "exec"])


def test_messages_are_found_behind_any_noise() -> None:
    sent = [
        Piece(3, 1, b"\x00" * 1000, True),
        Lines(-1, True, [b"\xff line"]),
        Ended(1, 1, 2, -9, "why", False, False, 0, [b"last"]),
    ]
    stream = b"Welcome \x00ftlib-agent not yet \xff\n" * 300 + greeting() + b"".join(encode(message) for message in sent)
    for size in (1, 7, 100_000):
        greeted, decoder, found, open_ = Greeted(), Decoder(), [], False
        for at in range(0, len(stream), size):
            chunk: bytes | None = stream[at : at + size]
            if not open_:
                chunk = greeted.feed(stream[at : at + size])
                open_ = chunk is not None
            if chunk:
                found += [message for message, _ in decoder.feed(chunk)]
        assert found == sent and list(map(type, found)) == list(map(type, sent))
        assert greeted.release == release()


@pytest.mark.parametrize(
    ("words", "loss", "remedy"),
    [
        ("root@n1: Permission denied (publickey).", Loss.REFUSED, "ssh-copy-id"),
        ("Host key for n1 has changed / Host key verification failed.", Loss.REFUSED, "ssh-keygen -R n1"),
        ("ssh: Could not resolve hostname n1: Name or service not known", Loss.REFUSED, "by its address"),
        ("exit code 127: bash: line 1: /no/python: No such file or directory", Loss.REFUSED, "--python"),
        ("exit code 1: python3: No module named ftlib", Loss.REFUSED, "install ftlib "),
        ("(ModuleNotFoundError: No module named 'ftlib')", Loss.REFUSED, "install ftlib "),
        ("ssh: connect to host n1 port 22: No route to host", Loss.AWAY, "is up"),
        ("srun: error: Slurm job 7 has expired", Loss.OVER, ""),
        ("exit code 3", Loss.REFUSED, "by hand"),
    ],
)
def test_what_a_command_says_is_understood(words: str, loss: Loss, remedy: str) -> None:
    assert loss_of(words) is loss
    told = with_remedy("n1", words)
    assert told.startswith(words.rstrip("."))
    assert remedy in told and bool(remedy) == (told != words)


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("nothing came for 30.1 s", "agent_timeout"),
        ("the stream ended", "dmesg"),
        ("the stream broke: Broken pipe", "dmesg"),
        (f"the stream ended: {describe_exit(-9)}", "dmesg"),
        (f"the stream ended: {describe_exit(255)}: Connection to n1 closed by remote host.", ""),
        ("it sent a Bye", ""),
    ],
)
def test_an_agent_that_is_lost_without_a_word_is_told_of_with_a_remedy(words: str, remedy: str) -> None:
    told = with_later_remedy("n1", words)
    assert remedy in told and bool(remedy) == (told != words)


class Refilled:
    """Takes records; whenever it has taken some, there is another one."""

    full = False

    def __init__(self) -> None:
        self.reading, self.writing = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.taken = 0

    def records(self, index: int, records: Sequence[Record]) -> None:
        del index
        self.taken += len(records)
        assert self.taken < 1000, "it reads for ever"
        self.log()

    def log(self) -> None:
        self.writing.send(msgpack.packb((20, "mine", 0.0, "x" * 50_000)))

    def pause(self, stream: Paused) -> None:
        raise AssertionError(stream)


async def test_what_a_dead_workers_children_log_for_ever_is_not_read_for_ever() -> None:
    sink = Refilled()
    records = Records(sink.reading.detach(), 0, asyncio.get_running_loop(), sink)
    with sink.writing:
        sink.log()
        records.finish()
    assert sink.taken > 10


@pytest.mark.parametrize("bytes_", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\xc1", b"\x00\x00\x00\x02\x91\x63"])
def test_nonsense_is_no_message(bytes_: bytes) -> None:
    with pytest.raises(StreamError):
        Decoder().feed(bytes_)
