"""A consensus double in one process: one thread decides views by a script, and everything a real one promises holds.

View changes run as flush, install, activate, with reports of every continuing member; a death in the middle starts the
next epoch.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from consensus import Consensus, DataPlane, ExcludedError, LeftError, Member, Mode, Source, StoppedError, View
from consensus.border import Activated, BoundaryRequest, Freeze, Installed, Stopped
from tests.harness.basics import TIMEOUT


class FakeConsensus(Consensus):
    """One member's handle."""

    def __init__(self, cluster: FakeCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.plane: DataPlane | None = None
        self.sources: dict[str, Source] = {}
        self.active: View | None = None
        self.installed: View | None = None
        self.boundaries: list[tuple[int, tuple[str, ...]]] = []
        self.failures: list[tuple[int, tuple[str, ...]]] = []
        self.successes = 0
        self.committed = False
        self.stop_error: StoppedError | None = None
        self.server: ThreadingHTTPServer | None = None

    @property
    def id(self) -> str:
        return self.name

    def start(self, data_plane: DataPlane | None = None, *, meta: Mapping[str, str] | None = None) -> None:
        self.plane = data_plane
        self.server = _serve(self.sources)
        port = self.server.server_address[1]
        self.member = Member(self.name, "127.0.0.1", int(port), tuple(sorted((meta or {}).items())))
        self.cluster.post("start", self)

    def stop(self) -> None:
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()

    def confirm(self) -> bool:
        return self.active is not None and self.cluster.idle

    def get_member_list(self) -> tuple[Member, ...]:
        return () if self.installed is None else self.installed.members

    def passive_or_active(self) -> Mode:
        return Mode.ACTIVE

    def report_join(self, addresses: Sequence[str]) -> bool:
        return True

    def seek_admission(self) -> None:
        self.cluster.post("seek", self)

    def new_member_join(self) -> bool:
        return bool(self.cluster.waiting)

    def progress(self, finished: int, current: int, *, busy: bool = False, inner: int = 0) -> None:
        self.where = (finished, current)

    def commit_to_leave(self) -> None:
        self.committed = True

    def average_success(self, call: int) -> None:
        self.successes += 1

    def average_failure(self, call: int, suspects: Sequence[str]) -> None:
        self.failures.append((call, tuple(suspects)))
        self.cluster.post("failure")

    def leave(self, *, ended: bool = False) -> None:
        self.cluster.post("leave", self, ended)

    def flushed(self, epoch: int, report: bytes) -> None:
        self.cluster.post("flushed", self, epoch, report)

    def ready(self, view_id: str) -> None:
        self.cluster.post("ready", self, view_id)

    def boundary(self, call: int, leavers: Sequence[str] = ()) -> None:
        self.boundaries.append((call, tuple(leavers)))
        self.cluster.post("boundary", self, call, tuple(leavers))

    @property
    def view(self) -> View | None:
        return self.active

    def status(self) -> dict[str, Any]:
        return {"id": self.name}

    def serve(self, path: str, source: Source) -> None:
        self.sources[path] = source

    def wait_view(self, timeout: float) -> View | None:
        return self.cluster.wait(lambda: self.active, timeout)

    def wait_known(self, timeout: float) -> View | None:
        return self.cluster.wait(lambda: self.cluster.view, timeout)


class FakeCluster:
    """The script's side."""

    def __init__(self, initial_size: int) -> None:
        self.initial_size = initial_size
        self.max_size: int | None = None
        """Members that a view has at most."""
        self.members: dict[str, FakeConsensus] = {}
        self.dead: set[str] = set()
        self.leaving: set[str] = set()
        self.said_ended: set[str] = set()
        """Who said that its program has come to its end."""
        self.ended: set[str] = set()
        """Those of them whom the newest view is without, and the one before was not."""
        self._departed: set[str] = set()
        """Leavers that enter no call and finish none any more."""
        self.waiting: list[str] = []
        self.view: View | None = None
        self.epoch = 0
        self.history: list[View] = []
        self.idle = True
        self._continuing: tuple[str, ...] = ()
        self._reports: dict[str, bytes] = {}
        self._ready: set[str] = set()
        self._flushing = False
        self._after: int | None = None
        self._changed = threading.Condition()
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def consensus(self, name: str) -> FakeConsensus:
        return FakeConsensus(self, name)

    def post(self, kind: str, *arguments: Any) -> None:
        self._events.put((kind, arguments))

    def kill(self, name: str) -> None:
        """It never says anything again; the others go on without it."""
        self.post("kill", name)

    def admit(self) -> None:
        """Let in who waits, though no call ends: a real consensus does so after ``boundary_wait``."""
        self.post("admit")

    def wait(self, get: Callable[[], Any], timeout: float) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: get() is not None, timeout)
            return get()

    def close(self) -> None:
        self._events.put(None)
        self._thread.join(TIMEOUT)

    # --- on the thread

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            kind, arguments = event
            try:
                getattr(self, f"_on_{kind}")(*arguments)
            except BaseException as error:
                self.errors.append(error)
                raise
            with self._changed:
                self._changed.notify_all()

    def _on_start(self, member: FakeConsensus) -> None:
        self.members[member.name] = member
        if self.view is None and len(self.members) == self.initial_size:
            self.epoch = 1
            self._install(View(1, "", tuple(self.members[name].member for name in sorted(self.members))))

    def _on_seek(self, member: FakeConsensus) -> None:
        if self.view is not None and member.name not in self.view and member.name not in self.waiting:
            self.waiting.append(member.name)
            self._request_boundary()

    def _on_leave(self, member: FakeConsensus, ended: bool = False) -> None:
        self.said_ended |= {member.name} if ended else set()
        if member.name in self.dead or self.view is None or member.name not in self.view:
            self._stop(member, LeftError("left"))
            return
        self._departed.add(member.name)
        if member.name not in self.leaving:
            self.leaving.add(member.name)
            self._on_change()
        elif self._flushing:  # its last call said so, and a change after that call is under way
            self._flushed_enough()

    def _on_change(self, after: int | None = None) -> None:
        """Start (or restart) a change."""
        if self.view is None:
            return
        self.epoch += 1
        self.idle = False
        self._flushing, self._after, self._reports = True, after, {}
        for name in self._alive():
            self._plane(name).handle(Freeze(self.epoch, after))
        self._flushed_enough()

    def _on_boundary(self, member: FakeConsensus, call: int, leavers: tuple[str, ...]) -> None:
        self.leaving |= set(leavers)
        if not self._flushing and self.idle:
            self._on_change(call)

    def _on_admit(self) -> None:
        if self.waiting and self.idle and not self._flushing:
            self._on_change()

    def _on_failure(self) -> None:
        if not self._flushing:  # else whoever failed is asked for its report anyway
            self._on_change()

    def _on_kill(self, name: str) -> None:
        self.dead.add(name)
        if self.view is not None and name in self.view:  # else its peers' failures had it removed already
            self._on_change()

    def _on_flushed(self, member: FakeConsensus, epoch: int, report: bytes) -> None:
        if self._flushing and epoch == self.epoch and member.name not in self.dead:
            self._reports[member.name] = report
            self._flushed_enough()

    def _flushed_enough(self) -> None:
        assert self.view is not None
        kept = [name for name in self._alive() if name not in self.leaving]
        # Leavers may still be on their way out of their last call.
        asked = [name for name in self._alive() if name not in self._departed]
        if not self._flushing or any(name not in self._reports for name in asked):
            return
        self._flushing = False
        room = max(1, len(kept)) if self.max_size is None else min(max(1, len(kept)), self.max_size - len(kept))
        joined = [name for name in self.waiting if name not in self.dead][:room]
        self.waiting = [name for name in self.waiting if name not in joined]
        gone = [name for name in self.view.ids if name in self.leaving]
        if not kept and not joined:
            self.view = None
        else:
            names = (*kept, *joined)
            self.ended = self.said_ended & (set(self.view.ids) - set(names))
            view = View(self.epoch, self.view.view_id, tuple(self.members[name].member for name in names))
            self._install(view)
        for name in gone:
            self._stop(self.members[name], LeftError("left"))

    def _install(self, view: View) -> None:
        self.view = view
        self.history.append(view)
        self._ready = set()
        self.idle = False
        for name in view.ids:
            self.members[name].installed = view
            reports = {m: r for m, r in self._reports.items() if m in view}
            self._plane(name).handle(Installed(view, reports, bool(self.ended)))

    def _on_ready(self, member: FakeConsensus, view_id: str) -> None:
        view = self.view
        if view is None or self._flushing or view.view_id != view_id:
            return
        self._ready.add(member.name)
        if self._ready == set(view.ids) and not self.dead & set(view.ids):
            self.idle = True
            # Before anybody can enter a call: its trailer would still carry the request of the view before.
            self._request_boundary()
            for name in view.ids:
                self.members[name].active = view
                self._plane(name).handle(Activated(view))

    def _request_boundary(self) -> None:
        if self.view is not None and self.idle:
            full = self.max_size is not None and len(self.view) >= self.max_size
            self._plane(self.view.ids[0]).handle(BoundaryRequest(bool(self.waiting) and not full))

    def _alive(self) -> list[str]:
        assert self.view is not None
        return [name for name in self.view.ids if name not in self.dead]

    def _plane(self, name: str) -> DataPlane:
        plane = self.members[name].plane
        assert plane is not None
        return plane

    def _stop(self, member: FakeConsensus, error: StoppedError) -> None:
        self.dead.add(member.name)
        member.stop_error = error
        if member.plane is not None:
            member.plane.handle(Stopped(error))

    def exclude(self, name: str) -> None:
        """Let a killed member know, so that its thread ends."""
        self._stop(self.members[name], ExcludedError("killed by the test"))


def _serve(sources: dict[str, Source]) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            try:
                chunks: Iterator[Any] = sources[parts.path](dict(parse_qsl(parts.query)))
                first = next(iter(chunks), b"")
            except LookupError as error:
                self.send_error_text(getattr(error, "status", 409), str(error.args[0]))
                return
            self.send_response(200)
            self.end_headers()
            for chunk in itertools.chain([first], chunks):
                self.wfile.write(chunk)

        def send_error_text(self, status: int, text: str) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    return server
