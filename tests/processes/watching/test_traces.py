"""Traces of real workers, as a collector gets them: a kill is one trace with spans of all survivors, at the record's times."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consensus import KeyRing, get, parse_address
from ftlib.lifecycle.tracing.spans import root_of, trace_of
from tests.harness.basics import free_ports
from tests.harness.cluster import Cluster, Worker
from tests.harness.collector import Collected, Collector
from tests.harness.nursery import Nursery
from tests.harness.servers import Server

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

LIMIT = 120.0
MOST = 1 << 24
EXACT = 0.05
"""Seconds by which a span may differ from the record, whose wall clock is reckoned anew each time it is asked for."""


@contextlib.contextmanager
def traced(nursery: Nursery, tmp_path: Path, url: str, **more: Any) -> Iterator[Cluster]:
    """A job without workers yet, the spans of which go to ``url``."""
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "200"}
    settings = {"bucket_mb": 0.08, "trace": "10", "exclude_after": 30.0}  # nobody is out but who is proven dead
    with Cluster(tmp_path / "job", nursery, settings=settings, environment=environment, sizes=[20_000, 300], **more) as cluster:
        yield cluster


def status(cluster: Cluster, worker: Worker) -> dict[str, Any]:
    """What a worker says of itself."""
    with get(parse_address(worker.address), "/status", KeyRing([cluster.secret]), timeout=30.0) as answer:
        found = json.loads(answer.read(MOST))
    assert isinstance(found, dict)
    return found


def change_to(told: dict[str, Any], epoch: int) -> dict[str, Any]:
    [found] = [change for change in told["history"] if change["epoch"] == epoch]
    assert isinstance(found, dict)
    return found


def killed(cluster: Cluster) -> list[Worker]:
    """Four train, one is killed: the survivors, once they train again."""
    cluster.found(4)
    cluster.training(4, LIMIT)
    cluster.advanced(LIMIT)
    cluster.workers[3].kill()
    cluster.training(3, LIMIT)
    return cluster.alive()


def test_a_kill_is_one_trace(nursery: Nursery, tmp_path: Path) -> None:
    checkpoints = ["tests.processes.programs.saver:Saver", str(tmp_path / "checkpoints"), 20]
    with Collector() as collector, traced(nursery, tmp_path, collector.url, pause=0.02, habit=checkpoints) as cluster:
        survivors = killed(cluster)
        told = [status(cluster, worker) for worker in survivors]
        changes = {each["member"]: change_to(each, 2) for each in told}
        [view_id] = {change["view_id"] for change in changes.values()}
        trace_id = trace_of(told[0]["job"], "view", view_id)

        def changed() -> list[Collected]:
            return [span for span in collector.all() if span.trace_id == trace_id and span.name == "view change"]

        cluster.until("all survivors' spans", lambda: len(changed()) >= len(survivors), LIMIT, 0.2)
        cluster.until("the root", lambda: [s for s in collector.all() if s.span_id == root_of(trace_id)], LIMIT, 0.2)
        assert {span.attributes["ftlib.member"] for span in changed()} == changes.keys()
        assert len(changed()) == len(survivors)
        for span in changed():
            change = changes[span.attributes["ftlib.member"]]
            assert span.parent == root_of(trace_id)
            assert span.began == pytest.approx(change["time"], abs=EXACT)
            assert span.ended - span.began == pytest.approx(change["moments"]["activated"], abs=1e-5)
            assert span.attributes["ftlib.cause"] == change["cause"] == "proof"
            assert (span.attributes["ftlib.size_before"], span.attributes["ftlib.size"]) == (4, 3)
            within = {each.name: each for each in collector.all() if each.parent == span.span_id}
            assert within.keys() == {*(change["phases"].keys() - {"total"}), "paused"}
            for name, seconds in change["phases"].items():
                if name != "total":
                    assert within[name].ended - within[name].began == pytest.approx(seconds, abs=1e-5)
            assert within["paused"].ended >= within["paused"].began > span.began - 1.0
            assert span.resource["service.name"] == "ftlib"
        [root] = [span for span in collector.all() if span.span_id == root_of(trace_id)]
        assert (root.name, root.parent) == ("epoch 2: 4 -> 3 members", 0)
        assert {"reported", "ready"} <= set(root.events)

        joiner = cluster.join()
        cluster.training(4, LIMIT)

        def named(name: str) -> list[Collected]:
            return [span for span in collector.all() if span.name == name]

        new = status(cluster, joiner)["member"]

        def caught_up() -> list[Collected]:
            return [span for span in named("recovery") if span.attributes["ftlib.member"] == new]

        cluster.until("the joiner's recovery", caught_up, LIMIT, 0.2)
        parts = [span for span in collector.all() if span.parent in {each.span_id for each in caught_up()}]
        assert parts
        assert all(span.attributes["ftlib.donor"] for span in parts)

        def given() -> list[Collected]:
            """By the donors, in the trace of the recovery: each part that came was sent by somebody."""
            trace = caught_up()[0].trace_id
            return [span for span in collector.all() if span.trace_id == trace and span.name.startswith("send ")]

        cluster.until("the donors' spans", lambda: len(given()) >= len(parts), LIMIT, 0.2)
        assert {span.attributes["ftlib.joiner"] for span in given()} == {new}
        donors = {status(cluster, worker)["member"] for worker in survivors}
        assert {span.attributes["ftlib.member"] for span in given()} <= donors
        assert {f"send {part.name}" for part in parts} <= {span.name for span in given()}

        cluster.until("a checkpoint", lambda: named("checkpoint"), LIMIT, 0.2)
        assert {span.name for span in collector.all() if span.parent in {each.span_id for each in named("checkpoint")}} >= {
            "write"
        }

        def sampled() -> bool:
            calls = [span for span in named("call average") if "sampled" in span.attributes["ftlib.why"]]
            assert all(span.attributes["ftlib.call"] % 10 == 0 for span in calls if span.attributes["ftlib.why"] == ["sampled"])
            members = {span.trace_id: set[str]() for span in calls}
            for span in calls:
                members[span.trace_id].add(span.attributes["ftlib.member"])
            return any(len(who) == 4 for who in members.values())

        cluster.until("a sampled call with spans of all four, in one trace", sampled, LIMIT, 0.2)
        cluster.drain(LIMIT)
        assert not list(cluster.faults())


class Rotel(Server):
    """A collector of another make: takes OTLP over HTTP and passes it on."""

    program = sys.executable
    package = ""
    ready = "Starting Rotel"
    taken = ("address already in use",)

    def __init__(self, directory: Path, onwards: str) -> None:
        super().__init__(directory)
        rotel = pytest.importorskip("rotel", reason="rotel is not installed: pip install rotel")
        self._agent = str(Path(rotel.__file__).parent / "rotel-agent")
        if b"libpython" in subprocess.run([self._agent, "--version"], capture_output=True, check=False).stderr:
            pytest.skip("libpython, which rotel loads, is not installed: apt-get install libpython3-dev")
        self._onwards = onwards

    def command(self) -> list[str]:
        """See ``Server``."""
        where = [f"--otlp-http-endpoint=127.0.0.1:{self.port}", f"--otlp-grpc-endpoint=127.0.0.1:{free_ports(1)[0]}"]
        out = [
            f"--otlp-exporter-endpoint={self._onwards}",
            "--otlp-exporter-protocol=http",
            "--otlp-exporter-compression=none",
            "--batch-timeout=100ms",
        ]
        return [self._agent, "start", "--exporter=otlp", f"--pid-file={self.directory / 'pid'}", *where, *out]


def test_a_real_collector_takes_it(nursery: Nursery, tmp_path: Path) -> None:
    with Collector() as collector:
        rotel = Rotel(tmp_path / "rotel", collector.url)
        rotel.start()
        try:
            with traced(nursery, tmp_path, f"http://127.0.0.1:{rotel.port}", pause=0.02) as cluster:
                survivors = killed(cluster)
                told = status(cluster, survivors[0])
                trace_id = trace_of(told["job"], "view", change_to(told, 2)["view_id"])

                def members() -> set[str]:
                    spans = [span for span in collector.all() if span.trace_id == trace_id]
                    return {str(span.attributes["ftlib.member"]) for span in spans if span.name == "view change"}

                cluster.until("spans of all survivors, by way of rotel", lambda: len(members()) == 3, LIMIT, 0.2)
                assert members() == {status(cluster, worker)["member"] for worker in survivors}
        finally:
            rotel.kill()


def test_a_collector_that_is_not_there_disturbs_nobody(nursery: Nursery, tmp_path: Path) -> None:
    [nobody] = free_ports(1)
    with traced(nursery, tmp_path, f"http://127.0.0.1:{nobody}", pause=0.02) as cluster:
        killed(cluster)
        for _ in range(3):
            cluster.advanced(LIMIT)
        cluster.drain(LIMIT)
        assert not list(cluster.faults())


def test_nothing_is_imported_without_the_setting() -> None:
    text = (
        "import sys\nfrom ftlib import FTLib\nft = FTLib.init(initial_size=1, agent='thread')\nimport torch\n"
        "assert ft.allreduce_average(torch.ones(3))\nft.close()\n"
        "found = [name for name in sys.modules if 'opentelemetry' in name or 'tracing' in name and 'ftlib' in name]\n"
        "sys.exit(str(found) if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
