"""Notices of preemption: each provider's protocol against a real HTTP server that speaks it, files, functions, and outages."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import torch

from ftlib import ConfigError, FTLib, Status
from ftlib.frameworks.memory import MemoryHub
from ftlib.lifecycle.preemption import Watch
from ftlib.settings.config import resolve
from ftlib.settings.preemption import source_of
from ftlib.settings.preemption.sources import File
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import at_once

Answer = tuple[int, dict[str, str], str]


class Metadata:
    """A metadata service: ``answer(method, path, query, headers)``, and what it was asked."""

    def __init__(self, answer: Callable[[str, str, dict[str, str], dict[str, str]], Answer]) -> None:
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = {key: values[0] for key, values in parse_qs(parts.query).items()}
                service.asked.append((self.command, parts.path, query))
                status, headers, body = answer(self.command, parts.path, query, dict(self.headers))
                data = body.encode()
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_PUT = do_GET  # noqa: N815 - the name is given

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(TIMEOUT)


@pytest.fixture
def serve() -> Iterator[Callable[..., Metadata]]:
    services: list[Metadata] = []

    def start(answer: Callable[[str, str, dict[str, str], dict[str, str]], Answer]) -> Metadata:
        services.append(Metadata(answer))
        return services[-1]

    yield start
    for service in services:
        service.close()


@pytest.fixture
def watch() -> Iterator[Callable[[Any], list[str]]]:
    """Starts one of a source, quick ones at that; what it was told."""
    watches: list[Watch] = []

    def start(named: Any) -> list[str]:
        told: list[str] = []
        source = source_of(named)
        source.interval = 0.02
        watches.append(Watch(source, told.append))
        watches[-1].start()
        return told

    yield start
    for each in watches:
        each.stop(TIMEOUT)
        assert not each._thread.is_alive()


def test_aws(serve: Callable[..., Metadata], watch: Callable[[Any], list[str]]) -> None:
    """A token first; it expires; 404 until the notice."""
    tokens: list[str] = []
    due = threading.Event()

    def answer(method: str, path: str, query: dict[str, str], headers: dict[str, str]) -> Answer:
        given = {key.lower(): value for key, value in headers.items()}
        if method == "PUT":
            assert path == "/latest/api/token"
            assert 1 <= int(given["x-aws-ec2-metadata-token-ttl-seconds"]) <= 21600
            tokens.append(f"token{len(tokens)}")
            return 200, {}, tokens[-1]
        if given.get("x-aws-ec2-metadata-token") != tokens[-1] or (len(tokens) == 1 and len(service.asked) > 4):
            return 401, {}, ""
        assert path == "/latest/meta-data/spot/instance-action"
        if due.is_set():
            return 200, {}, json.dumps({"action": "terminate", "time": "2026-11-22T08:22:00Z"})
        return 404, {}, "not found"

    service = serve(answer)
    told = watch(f"aws={service.url}")
    eventually(lambda: len(tokens) == 2, "a new token")
    count = len(service.asked)
    eventually(lambda: len(service.asked) > count + 2, "it goes on with that")
    assert not told
    due.set()
    eventually(lambda: told, "the notice")
    assert told == [f"preemption, aws ({service.url}): terminate at 2026-11-22T08:22:00Z"]
    assert len(tokens) == 2


def test_aws_recommends_to_rebalance(serve: Callable[..., Metadata], watch: Callable[[Any], list[str]]) -> None:
    """The same service, another path."""
    due = threading.Event()

    def answer(method: str, path: str, query: dict[str, str], headers: dict[str, str]) -> Answer:
        if method == "PUT":
            return 200, {}, "token"
        assert path == "/latest/meta-data/events/recommendations/rebalance"
        return (200, {}, json.dumps({"noticeTime": "2026-11-22T08:22:00Z"})) if due.is_set() else (404, {}, "not found")

    service = serve(answer)
    told = watch(f"aws-rebalance={service.url}")
    eventually(lambda: len(service.asked) > 2, "it looks")
    assert not told
    due.set()
    eventually(lambda: told, "the notice")
    assert told == [f"preemption, aws-rebalance ({service.url}): rebalance recommended at 2026-11-22T08:22:00Z"]


@pytest.fixture
def usr2() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR2)
    yield
    signal.signal(signal.SIGUSR2, before)


@pytest.mark.usefixtures("usr2")
@pytest.mark.parametrize("name", ["USR2", "sigusr2"])
def test_a_signal(name: str, watch: Callable[[Any], list[str]]) -> None:
    told = watch(f"signal:{name}")
    os.kill(os.getpid(), signal.SIGUSR2)
    eventually(lambda: told, "the notice")
    assert told == ["preemption, SIGUSR2: this process got it"]


def test_a_signal_cannot_be_caught_on_another_thread() -> None:
    """That is said, and nothing is left behind: neither a handler nor a watch that never looks."""
    before = signal.getsignal(signal.SIGUSR2)
    with pytest.raises(ConfigError, match=r"^preemption=signal:USR2: Python lets only the main thread catch a signal"):
        at_once(lambda: alone(preemption="signal:USR2"))
    assert signal.getsignal(signal.SIGUSR2) is before
    gc.collect()  # what it complains of is an error


def test_gcp(serve: Callable[..., Metadata], watch: Callable[[Any], list[str]]) -> None:
    """Asked once for what is the case, then to answer when it changes."""
    due, waiting = threading.Event(), threading.Event()

    def answer(method: str, path: str, query: dict[str, str], headers: dict[str, str]) -> Answer:
        assert headers["Metadata-Flavor"] == "Google"
        assert path == "/computeMetadata/v1/instance/preempted"
        if not query:
            return 200, {"Metadata-Flavor": "Google", "ETag": "411261ca6c9e4c24"}, "FALSE"
        assert query["wait_for_change"] == "true"
        assert query["last_etag"] == "411261ca6c9e4c24"
        assert int(query["timeout_sec"]) >= 10
        waiting.set()
        due.wait(TIMEOUT)
        return 200, {"Metadata-Flavor": "Google", "ETag": "5a5c8f3d10c67a1e"}, "TRUE"

    service = serve(answer)
    told = watch(f"gcp={service.url}")
    assert waiting.wait(TIMEOUT)
    assert not told
    due.set()
    eventually(lambda: told, "the notice")
    assert told == [f"preemption, gcp ({service.url}): preempted"]


def test_a_watch_stops_while_a_service_keeps_it_waiting(serve: Callable[..., Metadata]) -> None:
    over, waiting = threading.Event(), threading.Event()

    def answer(method: str, path: str, query: dict[str, str], headers: dict[str, str]) -> Answer:
        waiting.set()
        over.wait(TIMEOUT)
        return 200, {}, "FALSE"

    watch = Watch(source_of(f"gcp={serve(answer).url}"), lambda _: None)
    watch.start()
    assert waiting.wait(TIMEOUT)
    watch.stop(TIMEOUT)
    assert not watch._thread.is_alive()
    over.set()
    watch.stop()


def test_azure(serve: Callable[..., Metadata], watch: Callable[[Any], list[str]]) -> None:
    """Events of other machines, and such that do not end this one, are no notice."""
    event = {
        "EventId": "1",
        "EventStatus": "Scheduled",
        "ResourceType": "VirtualMachine",
        "NotBefore": "Sun, 22 Nov 2026 08:22:00 GMT",
    }
    events: list[dict[str, Any]] = [
        {**event, "EventType": "Preempt", "Resources": ["trainer_0"]},
        {**event, "EventType": "Freeze", "Resources": ["trainer_7"]},
    ]

    def answer(method: str, path: str, query: dict[str, str], headers: dict[str, str]) -> Answer:
        assert headers["Metadata"] == "true"
        if path == "/metadata/instance/compute/name":
            assert query == {"api-version": "2021-02-01", "format": "text"}
            return 200, {}, "trainer_7"
        assert (path, query) == ("/metadata/scheduledevents", {"api-version": "2020-07-01"})
        return 200, {"Content-Type": "application/json"}, json.dumps({"DocumentIncarnation": len(events), "Events": events})

    service = serve(answer)
    told = watch(f"azure={service.url}")
    eventually(lambda: len(service.asked) > 4, "it looks again and again")
    assert not told
    events.append({**event, "EventType": "Preempt", "Resources": ["trainer_3", "trainer_7"]})
    eventually(lambda: told, "the notice")
    assert told == [f"preemption, azure ({service.url}): Preempt at Sun, 22 Nov 2026 08:22:00 GMT"]
    assert [path for _, path, _ in service.asked].count("/metadata/instance/compute/name") == 1


@pytest.mark.parametrize(
    "nonsense",
    [
        pytest.param((500, {}, ""), id="error"),
        pytest.param((200, {"Metadata-Flavor": "Google"}, "maybe"), id="other words"),
        pytest.param((200, {}, "TRUE"), id="somebody else"),
    ],
)
def test_a_service_that_answers_nonsense_is_asked_again(
    nonsense: Answer, serve: Callable[..., Metadata], watch: Callable[[Any], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[Answer] = [nonsense] * 3 + [(200, {"Metadata-Flavor": "Google", "ETag": "e"}, "FALSE")]

    def answer(method: str, path: str, query: dict[str, str], headers: dict[str, str]) -> Answer:
        return answers.pop(0) if answers else (200, {"Metadata-Flavor": "Google", "ETag": "f"}, "TRUE")

    with caplog.at_level(logging.INFO, "ftlib"):
        told = watch(f"gcp={serve(answer).url}")
        eventually(lambda: told, "the notice at last")
    levels = [record.levelname for record in caplog.records if "answer" in record.message]
    assert levels == ["WARNING", "INFO"], "said once, and that it is over"


def test_a_service_that_is_away_is_told_of_once(watch: Callable[[Any], list[str]], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ftlib"):
        told = watch("aws=http://127.0.0.1:9")
        eventually(lambda: [record for record in caplog.records if record.levelname == "WARNING"], "a warning")
        time.sleep(0.2)  # several looks
    assert not told
    [warning] = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("no answer from aws (http://127.0.0.1:9) where a notice of preemption would be: ")


def test_a_file(tmp_path: Path, watch: Callable[[Any], list[str]]) -> None:
    told = watch(f"file:{tmp_path / 'go'}")
    time.sleep(0.1)  # several looks
    assert not told
    (tmp_path / "go").touch()
    eventually(lambda: told, "the notice")
    assert told == [f"preemption, file {tmp_path / 'go'}: it has appeared"]


def test_a_function(watch: Callable[[Any], list[str]], caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Any] = [None, False, "", OSError("away"), 0, "the queue was closed"]

    def closed() -> Any:
        value = answers.pop(0)
        if isinstance(value, Exception):
            raise value
        return value

    told = watch(closed)
    eventually(lambda: told, "the notice")
    assert told[0].endswith("closed: the queue was closed")
    assert "away" in caplog.text


@pytest.mark.parametrize(
    "wrong",
    [
        "file:",
        "signal:",
        "signal:KILL",
        "signal:TERM",
        "signal:NO",
        "aws:",
        "gcp=metadata",
        "https://host/",
        "spot",
        3,
        "azure=ftp://host",
    ],
)
def test_what_it_may_be(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="preemption"):
        resolve({"preemption": wrong}, {}, {})


def test_the_default_services() -> None:
    assert str(source_of("aws")) == "aws (http://169.254.169.254)"
    assert str(source_of("gcp")) == "gcp (http://metadata.google.internal)"
    assert str(source_of("azure=http://proxy:80/")) == "azure (http://proxy:80)"
    assert str(source_of("file:///run/preempted")) == "file /run/preempted"


def alone(**settings: Any) -> FTLib:
    return FTLib.init(framework=MemoryHub().framework("one"), config={}, agent="thread", **settings)


def test_a_notice_is_this_workers_last_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(File, "interval", 0.01)
    with alone(preemption=f"file:{tmp_path / 'go'}") as ft:
        assert ft.allreduce_average(torch.ones(1)) is Status.NO_NEED
        assert not ft._call_lock.leaving
        (tmp_path / "go").touch()
        eventually(lambda: ft._call_lock.leaving, "it is known")
        with pytest.raises(SystemExit) as end:
            ft.allreduce_average(torch.ones(1))
    assert end.value.code == 0
    assert not ft._watch._thread.is_alive()  # type: ignore[union-attr]


def test_who_looks_stops_by_itself() -> None:
    with alone() as ft:
        assert not ft.should_leave
        ft.drain()
        assert ft.should_leave
        for _ in range(3):
            assert ft.allreduce_average(torch.ones(1)) is Status.NO_NEED
    assert ft.allreduce_average(torch.ones(1)) is Status.ABORT
