"""``Manager`` with torchft's names and meanings: one worker of an ftlib job, which one training loop uses."""

from __future__ import annotations

import os
import socket
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from typing import Any, NoReturn

import torch
from torch.distributed import ReduceOp

from ..errors import ConfigError, FTLibError
from ..ftlib import FTLib
from .checkpointing.transport import check_transport
from .futures import future_timeout
from .replica.averages import Averages
from .replica.managed_work import _ManagedWork
from .replica.meeting import duration, settings_of
from .replica.place import place_of
from .replica.steps import AVERAGE, Step

__all__ = ["ExceptionWithTraceback", "Manager", "ManagerClient", "WorldSizeMode", "_ManagedWork"]

_OPERATIONS = (
    (ReduceOp.AVG, AVERAGE),
    (ReduceOp.SUM, "SUM"),
    (ReduceOp.MIN, "MIN"),
    (ReduceOp.MAX, "MAX"),
    (ReduceOp.PRODUCT, "PRODUCT"),
)
_MINUTE = timedelta(seconds=60)


class WorldSizeMode(Enum):
    """Whose tensors count: those of all replicas, or of the ``min_replica_size`` most senior ones (the others are spares)."""

    DYNAMIC = 0
    FIXED_WITH_SPARES = 1


class ExceptionWithTraceback(Exception):
    """An error that was reported, with the place where it was caught."""

    def __init__(self, e: Exception) -> None:
        self.original_exception = e
        self.stack_trace = traceback.format_exc()
        super().__init__(f"{e}\n{self.stack_trace}")


class ManagerClient:
    """torchft's client of a manager server. There is no such server here."""

    def __init__(self, addr: str, connect_timeout: timedelta = _MINUTE) -> NoReturn:
        raise ConfigError(
            f"ManagerClient({addr!r}, {connect_timeout}): there is no manager server here: ask the Manager itself, or "
            "`ftlib status`"
        )


class Manager:
    """This process's part in the job: a replica, or one process of it. Making it waits for nobody; the first ``start_quorum``
    meets the others.
    """

    def __init__(
        self,
        pg: Any,
        load_state_dict: Callable[[Any], None] | None,
        state_dict: Callable[[], Any] | None,
        min_replica_size: int,
        use_async_quorum: bool = True,
        timeout: timedelta = _MINUTE,
        quorum_timeout: timedelta = _MINUTE,
        connect_timeout: timedelta = _MINUTE,
        rank: int | None = None,
        world_size: int | None = None,
        world_size_mode: WorldSizeMode = WorldSizeMode.DYNAMIC,
        store_addr: str | None = None,
        store_port: int | None = None,
        lighthouse_addr: str | None = None,
        replica_id: str | None = None,
        port: int | None = None,  # noqa: ARG002 - there is no server
        hostname: str = socket.gethostname(),  # noqa: ARG002
        heartbeat_interval: timedelta = timedelta(milliseconds=100),  # noqa: ARG002 - the agents ping
        checkpoint_transport: Any = None,
        init_sync: bool = True,
        max_retries: int | None = None,
        quorum_retries: int = 0,  # noqa: ARG002 - the agents retry by themselves until quorum_timeout
    ) -> None:
        """The arguments of torchft's Manager; docs/torchft.md says what each does here. ConfigError if nothing says how the
        replicas meet, or how the processes of a replica do.
        """
        environment = dict(os.environ)
        if type(min_replica_size) is not int or min_replica_size < 1:
            raise ConfigError(f"min_replica_size={min_replica_size!r} must be a whole number of at least 1")
        self._place = place_of(rank, world_size, store_addr, store_port, environment)
        self._timeout = duration("TORCHFT_TIMEOUT_SEC", timeout, environment)
        self._quorum_timeout = duration("TORCHFT_QUORUM_TIMEOUT_SEC", quorum_timeout, environment)
        self._connect_timeout = duration("TORCHFT_CONNECT_TIMEOUT_SEC", connect_timeout, environment)
        self._meeting_timeout = max(self._connect_timeout, self._quorum_timeout)
        self._settings = settings_of(
            lighthouse_addr,
            {
                "job": "torchft",
                "initial_size": min_replica_size,
                "min_size": min_replica_size,
                "step_timeout": max(self._timeout, self._quorum_timeout).total_seconds(),
                "join_timeout": self._meeting_timeout.total_seconds(),
                "nonfinite": "pass",  # torchft commits inf and nan
            },
            environment,
        )
        check_transport(checkpoint_transport)
        self._pg = pg
        self._replica_id = replica_id
        self._min_replica_size = min_replica_size
        self._use_async_quorum = use_async_quorum
        self._world_size_mode = world_size_mode
        self._init_sync = init_sync
        self._max_retries = max_retries
        self._commit_failures = 0
        self._step = 0
        self._batches_committed = 0
        self._errored: ExceptionWithTraceback | None = None
        self._savers: dict[str, Callable[[], Any]] = {}
        self._loaders: dict[str, Callable[[Any], None]] = {}
        self._reading = threading.Condition()
        self._disallowed_by: int | None = None
        """The thread that has disallowed reading the state."""
        self._ft: FTLib | None = None
        self._averages: Averages | None = None
        """Of all steps; there once the others were met."""
        self._calls: Step | None = None
        """Those of the step that ``start_quorum`` began."""
        self._stale = False
        """Another replica's state was loaded since then: what this step has computed does not belong to it."""
        self._down = False
        if load_state_dict and state_dict:
            self.register_state_dict_fn("default", load_state_dict, state_dict)

    # --- state ---------------------------------------------------------------------------------------------------------

    def register_state_dict_fn(self, key: str, load_state_dict: Callable[[Any], None], state_dict: Callable[[], Any]) -> None:
        """Add a part of the state that a joining replica gets; the same keys at all replicas. ConfigError if it is there."""
        if key in self._savers:
            raise ConfigError(f"register_state_dict_fn: there is a part of the state with the key {key!r}: take another key")
        self._loaders[key], self._savers[key] = load_state_dict, state_dict

    def set_state_dict_fns(self, load_state_dict: Callable[[Any], None], state_dict: Callable[[], Any]) -> None:
        """``register_state_dict_fn`` by its older name."""
        self.register_state_dict_fn("set_state_dict_fns", load_state_dict, state_dict)

    def allow_state_dict_read(self) -> None:
        """The state may be read again."""
        with self._reading:
            self._disallowed_by = None
            self._reading.notify_all()

    def disallow_state_dict_read(self) -> None:
        """The state is about to change: whoever reads it waits, at most for ``timeout``."""
        with self._reading:
            self._disallowed_by = threading.get_ident()

    def state_dict(self) -> dict[str, int]:
        """Counters for a checkpoint: ``{"step", "batches_committed"}``."""
        return {"step": self._step, "batches_committed": self._batches_committed}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on from the counters of a checkpoint."""
        self._step, self._batches_committed = state_dict["step"], state_dict["batches_committed"]

    def _manager_state_dict(self) -> dict[str, Any]:
        """All that a joining replica gets."""
        with self._reading:
            if self._disallowed_by == threading.get_ident():
                raise ConfigError(
                    "the state is read between disallow_state_dict_read and allow_state_dict_read: allow it first"
                )
            if not self._reading.wait_for(lambda: self._disallowed_by is None, self._timeout.total_seconds()):
                raise FTLibError(
                    f"the state could not be read for {self._timeout}: disallow_state_dict_read was not taken back"
                )
            return {"user": {key: save() for key, save in self._savers.items()}, "torchft": self.state_dict()}

    def _load_manager_state_dict(self, tree: dict[str, Any]) -> None:
        """Take over the state of another replica."""
        missing = sorted(self._loaders.keys() - tree["user"].keys())
        if missing:
            raise ConfigError(f"the other replicas have no state {', '.join(missing)}: register the same keys at all replicas")
        self._stale = True
        self.load_state_dict(tree["torchft"])
        for key, load in self._loaders.items():
            load(tree["user"][key])

    # --- a step --------------------------------------------------------------------------------------------------------

    def start_quorum(
        self,
        allow_heal: bool = True,  # noqa: ARG002 - who lacks the state has nothing else to take part with
        shrink_only: bool = False,  # noqa: ARG002 - members come and go between calls, whatever a step wants
        timeout: timedelta | None = None,  # noqa: ARG002 - quorum_timeout counts
    ) -> None:
        """Begin a step. The first one meets the others. A replica that lacks the state gets it here, whatever ``allow_heal``
        is, so that its first forward pass is on it; any other sends nothing, and waits for nobody.
        """
        self._errored = None
        ft = self._met()
        ft.catch_up()
        self._stale = False
        averages = self._averages = self._averages or Averages(ft, max(1, int(ft.settings.bucket_mb * 2**20)))
        self._calls = Step(ft, averages, counts=self._counts(ft), sound=self._sound)

    def wait_quorum(self) -> None:
        """ConfigError if ``start_quorum`` was not called; otherwise it has met the others already."""
        self._begun("wait_quorum")

    def allreduce(
        self, tensor: torch.Tensor, should_quantize: bool = False, reduce_op: ReduceOp | ReduceOp.RedOpType = ReduceOp.AVG
    ) -> _ManagedWork:
        """Reduce ``tensor`` in place over the replicas that count; the result is there after the returned work's ``wait``, when
        the backward pass has ended that added it, or after ``should_commit``. All that was added until then goes in one call,
        which is under way beside backward where the steps before were alike.

        ``reduce_op``: AVG (floating point), SUM, MIN, MAX or PRODUCT. ``should_quantize``: float32 is averaged as fp8. After
        an error the tensor may hold anything, and ``should_commit`` is False at all replicas.
        """
        calls = self._begun("allreduce")
        op = next((name for known, name in _OPERATIONS if reduce_op == known), None)
        if op is None:
            raise ConfigError(f"reduce_op={reduce_op}: choose AVG, SUM, MIN, MAX or PRODUCT")
        if op is AVERAGE and not torch.is_floating_point(tensor):
            raise ValueError(f"AVG is for floating point tensors, not {tensor.dtype}: give reduce_op=ReduceOp.SUM")
        sending = calls.add(tensor, op, quantized=should_quantize and op is AVERAGE)
        return _ManagedWork(self, _Sent(calls, sending), tensor)

    def should_commit(self, timeout: timedelta | None = None) -> bool:  # noqa: ARG002 - the deadlines of the calls count
        """End the step: True, at all replicas, if the optimizer may be stepped; call it once a step, after backward.

        RuntimeError after more than ``max_retries`` steps in a row that were skipped; FTLibError if this worker has left, or
        was out for a while and came back in the very vote.
        """
        calls = self._begun("should_commit")
        failure = getattr(self._pg, "errored", lambda: None)()
        if isinstance(failure, Exception):
            self.report_error(failure)
        count = calls.commit()
        if self._stale and count:
            self.shutdown()
            raise FTLibError(
                "this replica was out for a while, and got the others' state amid a step that they commit: its part of that "
                "step is lost, so its state is not theirs. Start the program again, and it joins them"
            )
        if count >= self._min_replica_size:
            self._step += 1
            self._batches_committed += count
            self._commit_failures = 0
            return True
        self._commit_failures += 1
        if self._max_retries is not None and self._commit_failures > self._max_retries:
            raise RuntimeError(
                f"{self._commit_failures} steps in a row were skipped, more than max_retries={self._max_retries}"
            ) from self._errored
        return False

    def report_error(self, e: Exception) -> None:
        """All replicas skip this step."""
        self._errored = ExceptionWithTraceback(e)

    def errored(self) -> ExceptionWithTraceback | None:
        """The last error that was reported here in this step."""
        return self._errored

    def wrap_future(
        self, fut: torch.futures.Future[Any], default: Any, timeout: timedelta | None = None
    ) -> torch.futures.Future[Any]:
        """A future with the result of ``fut``; with ``default`` if that fails or takes longer than ``timeout`` (None: the
        manager's), in which case the error is reported.
        """
        wrapped: torch.futures.Future[Any] = torch.futures.Future()

        def complete(done: torch.futures.Future[Any]) -> None:
            try:
                value = done.value()
            except Exception as error:  # noqa: BLE001 - whatever it is, the step is skipped
                self.report_error(error)
                value = default
            wrapped.set_result(value)

        future_timeout(fut, self._timeout if timeout is None else timeout).add_done_callback(complete)
        return wrapped

    # --- where the job is ----------------------------------------------------------------------------------------------

    def current_step(self) -> int:
        """Steps that were committed."""
        return self._step

    def batches_committed(self) -> int:
        """Steps that were committed, each counted once for every replica that took part."""
        return self._batches_committed

    def num_participants(self) -> int:
        """Replicas whose tensors count; 0 before the first ``start_quorum``."""
        if self._ft is None or self._calls is None:
            return 0
        size = self._ft.size
        return size if self._world_size_mode is WorldSizeMode.DYNAMIC else min(size, self._min_replica_size)

    def participating_rank(self) -> int | None:
        """This replica's rank among them; None for a spare, and before the first ``start_quorum``."""
        if self._ft is None or self._calls is None or not self._counts(self._ft):
            return None
        return self._ft.rank

    def is_participating(self) -> bool:
        """Whether this replica's tensors count."""
        return self.participating_rank() is not None

    def shutdown(self, wait: bool = True) -> None:  # noqa: ARG002 - it takes two seconds at most
        """Leave the job. Idempotent; the others finish their step without this replica."""
        self._down = True
        if self._ft is not None:
            self._ft.close()

    # --- inside --------------------------------------------------------------------------------------------------------

    def _sound(self) -> bool:
        """False if the step cannot be applied here: an error was reported, or this replica came back amid the step."""
        return self._errored is None and not self._stale

    def _met(self) -> FTLib:
        if self._down:
            raise FTLibError("start_quorum: this manager was shut down: make another one")
        if self._ft is None:
            ft = FTLib.init(**self._settings, **self._place.settings(self._replica_id, self._meeting_timeout))
            try:
                ft.register_state(
                    state_dict=self._manager_state_dict, load_state_dict=self._load_manager_state_dict, sync=self._init_sync
                )
            except BaseException:
                ft.close()
                raise
            self._ft = ft
        return self._ft

    def _begun(self, what: str) -> Step:
        if self._calls is None:
            raise ConfigError(f"{what} was called before start_quorum: begin each step with it, or with Optimizer.zero_grad")
        return self._calls

    def _counts(self, ft: FTLib) -> bool:
        return self._world_size_mode is WorldSizeMode.DYNAMIC or 0 <= ft.rank < self._min_replica_size


class _Sent:
    """A tensor that was added to a step's calls; ``wait`` makes them, if they were not made."""

    def __init__(self, calls: Step, sending: int) -> None:
        """``sending``: the one that the tensor goes with."""
        self._calls = calls
        self._sending = sending

    def wait(self) -> None:
        """See ``Waits``."""
        self._calls.settle(self._sending)
