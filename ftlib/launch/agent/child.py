"""A worker that the warm process forked: what it makes of itself, the call of the function, what it leaves behind."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import mmap
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgpack

from ...common.processes import die_with_parent, settle_autograd
from .. import parcel
from .group import Group, open_group

LONGEST_TEXT = 60_000
"""Bytes of the longest text of a log record; the rest of it is cut off. A packet must fit the socket's buffer."""
_LONGEST_NAME = 1_000


@dataclass(frozen=True, slots=True)
class Birth:
    """All that one worker is given. Descriptors are the worker's own."""

    out: int
    err: int
    records: int
    """A socket that takes log records."""
    gate: int
    """It waits here until the agent knows of it."""
    call: int
    """A file with the pickled function and its arguments."""
    outcome: int
    """The file for what it returns or raises."""
    control: tuple[int, ...]
    """UDP and TCP descriptors of a founder's control port."""
    master: int
    """The listening socket of the group's store; -1: another worker has it."""
    agent: int
    """The agent's process id."""
    environment: Mapping[str, str]
    directory: str
    path: Sequence[str]
    results: str
    backend: str
    timeout: float
    """Seconds that operations of the default group may take."""


def live(birth: Birth, forker: int) -> int:
    """Be a worker, from the fork on; returns the exit code. ``forker``: the process that forked this one and then ended."""
    os.setsid()
    while os.getppid() == forker:  # until it has ended, and the agent is the parent
        time.sleep(0.0002)
    die_with_parent(birth.agent)
    null = os.open(os.devnull, os.O_RDONLY)
    for here, there in ((null, 0), (birth.out, 1), (birth.err, 2)):
        os.dup2(here, there)
        os.close(here)
    if not os.read(birth.gate, 1):
        return 128 + signal.SIGTERM
    os.close(birth.gate)
    _settle(birth)
    return _call(birth)


def _settle(birth: Birth) -> None:
    """Make this process look like one that was started with the worker's variables."""
    os.environ.clear()
    os.environ.update(birth.environment)
    if birth.control:
        os.environ["FTLIB_SOCKET_FDS"] = ",".join(map(str, birth.control))
    with contextlib.suppress(OSError):
        os.chdir(birth.directory)
    sys.path[:] = [*(each for each in birth.path if each not in sys.path), *sys.path]
    sys.argv[:] = ["ftlib-worker"]
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    settle_autograd()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(int.from_bytes(os.urandom(8)))  # else all have drawn the warm process's seed
    if torch is not None and birth.environment.get("OMP_NUM_THREADS", "").isdecimal():
        torch.set_num_threads(int(birth.environment["OMP_NUM_THREADS"]))  # the variable was read where torch was imported
    time.tzset()
    root = logging.getLogger()
    root.addHandler(RecordSender(socket.socket(fileno=birth.records)))
    root.setLevel(os.environ.get("FTLIB_LOG_LEVEL", "INFO").upper())
    logging.captureWarnings(True)


def _call(birth: Birth) -> int:
    group: Group | None = None
    with os.fdopen(birth.outcome, "r+b") as outcome:
        try:
            with mmap.mmap(birth.call, 0, prot=mmap.PROT_READ) as whole:
                function, args, kwargs = pickle.loads(whole)  # noqa: S301 - from the caller, who started this
            group = open_group(birth.backend, birth.master, birth.timeout) if birth.backend else None
            if group is None and birth.master >= 0:
                os.close(birth.master)  # reserved until now: the function may listen there
            value = function(*args, **kwargs)
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else 0 if ending.code is None else 1
            if code:
                if not isinstance(ending.code, int):
                    sys.stderr.write(f"{ending.code}\n")
                return code & 0xFF
            value = None  # it has finished, as if it had returned
        except BaseException as error:  # noqa: BLE001 - whatever it is, the caller raises it
            if error.__traceback__ is not None:
                error.__traceback__ = error.__traceback__.tb_next  # without this frame
            traceback.print_exception(error)
            parcel.write_error(outcome, error, birth.results)
            return 1
        try:
            parcel.write_result(outcome, value, birth.results)
        except Exception as error:  # noqa: BLE001 - a __reduce__ may raise anything
            traceback.print_exc()
            parcel.write_error(outcome, error, birth.results)
            return 1
    if group is not None:
        group.leave()
    return 0


class RecordSender(logging.Handler):
    """Hands log records to the agent, with their level. One record is one packet, whole in whatever process it was made."""

    def __init__(self, records: socket.socket) -> None:
        super().__init__()
        self._records = records

    def emit(self, record: logging.LogRecord) -> None:
        """Send it; waits while the agent takes none."""
        try:
            text = record.getMessage()
            if record.exc_info:
                text = f"{text}\n{logging.Formatter().formatException(record.exc_info)}"
            name, text = _cut(record.name, _LONGEST_NAME), _cut(text, LONGEST_TEXT)
            self._records.send(msgpack.packb((record.levelno, name, record.created, text)))
        except OSError:
            pass  # the agent has ended, and so will this process
        except Exception:  # noqa: BLE001 - as every handler of logging
            self.handleError(record)


def _cut(text: str, most: int) -> str:
    """As much of ``text`` as takes ``most`` bytes."""
    return text[:most].encode("utf-8", "backslashreplace")[:most].decode("utf-8", "ignore")
