"""``ftlib status`` against things that answer well, badly, and not at all."""

from __future__ import annotations

import io
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from rich.console import Console

from ftlib.cli.main import main
from ftlib.cli.overview import show, watch_status
from ftlib.cli.status import fetch_status, with_learners
from ftlib.errors import FTLibError
from tests.harness.basics import TIMEOUT
from tests.harness.drip import dripping

NOW = time.time()
FIRST, SECOND = "a1" * 8, "b2" * 8
STATUS: dict[str, Any] = {
    "job": "lab",
    "member": FIRST,
    "address": "10.0.0.1:7000",
    "meta": {"name": "worker 0", "pid": "4711"},
    "policy": "majority",
    "messages": {"sent": {"Ping": {"messages": 2, "bytes": 1500}}, "received": {}, "dropped": {}},
    "epoch": 4,
    "active_epoch": 4,
    "changing": False,
    "coordinator": FIRST,
    "awareness": 1,
    "stopped": None,
    "members": [
        {
            "id": FIRST,
            "address": "10.0.0.1:7000",
            "meta": {"name": "worker 0"},
            "status": "alive",
            "incarnation": 0,
            "evidence": None,
        },
        {"id": SECOND, "address": "10.0.0.1:7001", "meta": {}, "status": "suspect", "incarnation": 2, "evidence": "silence"},
    ],
    "view_changes": {"changes": {"founded": 1, "proof": 2}, "removed": {"proof": 2}, "joined": 2},
    "tick_delay_max": 0.05,
    "tick_delay": {"count": 10, "sum": 0.01},
    "notes": [{"time": NOW, "level": "INFO", "kind": "suspect", "text": "b2b2b2@10.0.0.1:7001 does not answer"}],
    "ftlib": {
        "phase": "active",
        "rank": 0,
        "step": 90,
        "finished_calls": 99,
        "in_call": {"number": 100, "seconds": 12.5, "text": "average"},
        "peers": {SECOND: {"finished": 98, "current": 0, "seconds": 9.0}},
        "calls": 99,
        "redone": 1,
        "adopted": 0,
        "donated": 0,
        "rebuild_failures": 0,
        "bytes_averaged": 2_500_000,
        "call_seconds": {"count": 99, "sum": 0.99, "last": 0.02, "max": 1.5, "buckets": []},
        "pauses": {"count": 2, "sum": 0.06, "last": 0.02, "max": 0.04, "buckets": []},
    },
}


class Member(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps(STATUS).encode() if self.path == "/status" else b"?"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def member() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Member) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(TIMEOUT)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_a_member_is_shown_to_people_and_programs(member: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch_status(member, TIMEOUT) == STATUS
    assert run("status", member, "--json") == 0
    assert json.loads(capsys.readouterr().out) == STATUS
    assert run("status", member) == 0
    assert capsys.readouterr().out.startswith("worker 0 (a1a1a1) at 10.0.0.1:7000, pid 4711, job lab\n")


def shown(status: dict[str, Any], width: int = 200) -> list[str]:
    stream = io.StringIO()
    show(status, Console(file=stream, width=width))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def clock() -> str:
    """``NOW`` as it is shown: with its date once midnight has passed since."""
    at = time.localtime(NOW)
    return time.strftime("%H:%M:%S" if at[:3] == time.localtime()[:3] else "%Y-%m-%d %H:%M:%S", at)


def test_the_text() -> None:
    lines = shown(STATUS)
    lines[-1] = re.sub(r"(:\d\d)\.\d{3} ", r"\1 ", lines[-1])
    assert lines == [
        "worker 0 (a1a1a1) at 10.0.0.1:7000, pid 4711, job lab",
        "epoch 4 · 2 members · rank 0 · step 90 · active",
        "coordinator worker 0 (a1a1a1), policy majority",
        "member      id      address        status   against it                progress",
        "worker 0 *  a1a1a1  10.0.0.1:7000  alive    -                         99 calls, in call 100 for 12.5 s",
        "-           b2b2b2  10.0.0.1:7001  suspect  silence, refuted 2 times  98 calls, outside of calls, unchanged for 9.0 s",
        "calls 99 (mean 10 ms, last 20 ms, longest 1.5 s), 2.5 MB averaged; redone 1, adopted 0, donated 0",
        "pauses 2 (last 20 ms, longest 40 ms, in all 60 ms); groups that failed to build 0",
        "view changes 3: 1 founded, 2 proof",
        "messages sent 2 (1.5 kB): Ping 2",
        "agent: awareness 1, timers late 1 ms on average, 50 ms at most",
        "remarks",
        f"  {clock()} suspect: b2b2b2@10.0.0.1:7001 does not answer",
    ]


def test_how_long_steps_take() -> None:
    quick = {"last": 0.1, "median": 0.12, "slow_for": 0, "straggler": False}
    times = {STATUS["member"]: quick, SECOND: {**quick, "median": 0.31, "slow_for": 14, "straggler": True}}
    lines = shown({**STATUS, "ftlib": {**STATUS["ftlib"], "step_times": times}})
    assert lines[4].endswith("99 calls, in call 100 for 12.5 s, 120 ms a step")
    assert lines[5].endswith("unchanged for 9.0 s, 310 ms a step, a straggler for 14 steps")


def test_how_far_local_training_is() -> None:
    """Who trains for hours between two averages is seen to do so; of who does not, nothing is said."""
    peers = {SECOND: {**STATUS["ftlib"]["peers"][SECOND], "inner_steps": 7}}
    apart = {**STATUS["ftlib"], "in_call": None, "inner_steps": 1234, "peers": peers}
    lines = shown({**STATUS, "ftlib": apart})
    assert lines[4].endswith("99 calls, outside of calls, 1234 inner steps")
    assert lines[5].endswith("98 calls, outside of calls, unchanged for 9.0 s, 7 inner steps")
    lines = shown({**STATUS, "ftlib": {**apart, "in_call": STATUS["ftlib"]["in_call"]}})
    assert lines[4].endswith("99 calls, in call 100 for 12.5 s, 1234 inner steps")
    none = {SECOND: {**peers[SECOND], "inner_steps": 0}}
    lines = shown({**STATUS, "ftlib": {**apart, "inner_steps": 0, "peers": none}})
    assert "inner" not in "".join(lines)


def test_a_new_member_that_has_not_told_where_it_is() -> None:
    untold = {"finished": None, "current": None, "seconds": None, "following": True, "late": False}
    lines = shown({**STATUS, "ftlib": {**STATUS["ftlib"], "peers": {SECOND: untold}}})
    assert lines[5].endswith("has not told yet, gets the state")


def test_who_waits_to_be_let_in() -> None:
    spares = [{"id": f"{index}" * 16, "meta": {"name": f"worker {index}"} if index else {}} for index in range(9)]
    lines = shown({**STATUS, "spares": spares[:2]})
    assert "waiting to be let in: 000000, worker 1 (111111)" in lines
    assert any(line.endswith("worker 7 (777777) ...") for line in shown({**STATUS, "spares": spares}))


def test_a_shared_store() -> None:
    store = {"url": "file:///shared", "open": True, "away_since": None, "operations": 30, "requests": {}, "failures": 0}
    assert "store file:///shared: up, operations 30" in shown({**STATUS, "store": store})
    store |= {"away_since": NOW, "requests": {"list": 4, "write": 20}, "failures": 2}
    (line,) = (line for line in shown({**STATUS, "store": store}) if line.startswith("store"))
    line = re.sub(r"(:\d\d)\.\d{3},", r"\1,", line)
    assert line == f"store file:///shared: away since {clock()}, operations 30 (list 4, write 20); 2 failed"
    assert "store redis://host: being opened, operations 0" in shown(
        {**STATUS, "store": {"url": "redis://host", "open": False}}
    )


GETTING = {"total": 1_200_000_000, "got": 400_000_000, "rate": 2e8, "left": 4.0, "pending": 3, "braking": False}
GOT = "400 MB of 1.2 GB (33%) at 200 MB/s, 4.0 s left; 3 averages wait to be replayed"


def test_how_far_a_joiner_is_with_the_state() -> None:
    lines = shown({**STATUS, "ftlib": {**STATUS["ftlib"], "recovery": GETTING}})
    assert lines[4].endswith(f"99 calls, in call 100 for 12.5 s, gets the state: {GOT}")


def test_how_far_another_is_with_it() -> None:
    following = {SECOND: {**STATUS["ftlib"]["peers"][SECOND], "current": 100, "seconds": 0.1, "following": True}}
    status = {**STATUS, "ftlib": {**STATUS["ftlib"], "peers": following}}
    asked = []

    def fetch(address: str, timeout: float) -> dict[str, Any]:
        asked.append((address, timeout))
        return {"member": SECOND, "ftlib": {"phase": "active", "recovery": GETTING}}

    lines = shown(with_learners(status, 5.0, fetch))
    assert lines[5].endswith(f"98 calls, in call 100, gets the state: {GOT}")
    assert asked == [("10.0.0.1:7001", 1.0)]

    def mute(_address: str, _timeout: float) -> dict[str, Any]:
        raise FTLibError("no member answers")

    def another(_address: str, _timeout: float) -> dict[str, Any]:
        return {"member": FIRST, "ftlib": {"phase": "active", "recovery": GETTING}}

    for silent in (mute, another):
        assert shown(with_learners(status, 5.0, silent))[5].endswith("98 calls, in call 100, gets the state")
    assert with_learners(STATUS, 5.0, mute) == STATUS, "nobody follows: nobody else is asked"


def test_a_narrow_terminal_folds_and_cuts_nothing() -> None:
    def characters(width: int) -> list[str]:
        return sorted("".join(shown(STATUS, width)).replace(" ", ""))

    assert max(len(line) for line in shown(STATUS, 60)) <= 60
    assert characters(60) == characters(200)


def test_a_member_without_a_data_plane_or_a_view() -> None:
    bare = {key: STATUS[key] for key in ("job", "member", "address", "meta", "policy", "epoch", "active_epoch", "coordinator")}
    assert shown({**bare, "members": [], "coordinator": None, "active_epoch": 0})[1:] == [
        "epoch 0 · 0 members",
        "coordinator none, policy majority",
    ]


def test_a_training_process_that_does_not_answer_the_agent() -> None:
    said = "the training process does not answer (busy, or hung): its numbers are older, or missing"
    assert shown({**STATUS, "ftlib": {"stale": True}})[1:3] == ["epoch 4 · 2 members", said]
    assert shown({**STATUS, "ftlib": {**STATUS["ftlib"], "stale": True}})[1:3] == [
        "epoch 4 · 2 members · rank 0 · step 90 · active",
        said,
    ]


def test_an_answer_of_another_version_is_one_line(member: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(STATUS, "ftlib", {"phase": "active"})
        assert run("status", member) == 1
    error = capsys.readouterr().err
    assert "another version" in error
    assert error.count("\n") == 1


def test_nothing_steers_the_terminal() -> None:
    name = "[red]\x1b[2Jworker"
    lines = shown({**STATUS, "meta": {"name": name}, "members": [{**STATUS["members"][0], "meta": {"name": name}}]})
    assert lines[0].startswith("[red]?[2Jworker (a1a1a1)")
    assert lines[4].startswith("[red]?[2Jworker *")


def test_watching_is_not_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("status", "127.0.0.1:1", "--watch", "--json") == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_watching_ends_when_the_member_does() -> None:
    answers = iter([STATUS, {**STATUS, "epoch": 5}])
    looked: list[float] = []

    def fetch() -> dict[str, Any]:
        looked.append(time.monotonic())
        for answer in answers:
            return answer
        raise FTLibError("no member answers at 10.0.0.1:7000")

    with pytest.raises(FTLibError, match="no member answers"):
        watch_status(fetch, Console(file=io.StringIO(), width=100), every=0.01)
    assert len(looked) == 3


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        assert run("status", f"127.0.0.1:{port}") == 1
    error = capsys.readouterr().err
    assert error.startswith("ftlib: error: no member answers at 127.0.0.1")
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", [["status"], ["explain"], ["stack"], ["drain", "--yes"], ["dashboard"], ["chaos"]])
def test_what_cannot_be_the_name_of_a_host_is_one_line(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*command, "node..one:7000") == 1
    assert capsys.readouterr().err.startswith("ftlib: error: no member answers at node..one:7000 ('node..one' is no host name)")


def test_silence_has_a_deadline(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        assert run("status", f"127.0.0.1:{mute.getsockname()[1]}", "--timeout", "0.1") == 1
    assert "did not answer within 0.1 s" in capsys.readouterr().err


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 200 OK\r\n\r\n{"])
def test_an_answer_without_an_end_has_a_deadline_too(head: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with dripping(head) as address:
        assert run("status", address, "--timeout", "0.3") == 1
    assert "did not answer within 0.3 s" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["nonsense", "host:port", "1.2.3.4:99999"])
def test_a_malformed_address_is_named(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("status", address) == 2
    assert f"{address!r} is not an address" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run", "x.py"], "Missing option '-n'"),
        (["run", "-n", "two", "x.py"], "'two' is neither a number of at least 1 nor auto, gpu or cpu"),
        (["run", "-n", "0", "x.py"], "'0' is neither a number of at least 1 nor auto, gpu or cpu"),
        (["run", "-n", "2"], "Missing argument 'SCRIPT'"),
        (["run", "-n", "2", "--min", "3", __file__], "--min 3"),
        (["run", "-n", "2", "no-such-script.py"], "no script no-such-script.py"),
        (["run", "-n", "2", "-m", "no_such_module"], "no module named no_such_module"),
        (["status", "127.0.0.1:1", "--timeout", "-1"], "Invalid value for '--timeout'"),
        (["status", "127.0.0.1:1", "--timeout", "nan"], "Invalid value for '--timeout'"),
        (["drain", "127.0.0.1:1", "--timeout", "inf"], "Invalid value for '--timeout'"),
        (["doctor", "127.0.0.1:1", "--timeout", "-1"], "Invalid value for '--timeout'"),
        (["chaos", "127.0.0.1:1", "--mtbf", "nan"], "Invalid value for '--mtbf'"),
        (["fly"], "No such command 'fly'"),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.startswith("ftlib: error: ")
    assert error.count("\n") == 1


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    assert "run" in capsys.readouterr().out
