"""``ftlib status`` against things that answer well, badly, and not at all."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from ftlib.launch.cli import main
from ftlib.launch.status import fetch_status, show_status

STATUS = {
    "epoch": 4,
    "changing": False,
    "lag": 0.123456789,
    "view": None,
    "members": [{"id": "a", "rank": 0}, {"id": "bcd", "rank": 1, "suspect": True}],
    "metrics": {"steps": 12, "empty": []},
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
        thread.join(10)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_a_member_is_shown_to_people_and_programs(member: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch_status(member) == STATUS
    assert run("status", member, "--json") == 0
    assert json.loads(capsys.readouterr().out) == STATUS
    assert run("status", member) == 0
    assert capsys.readouterr().out.rstrip("\n") == show_status(STATUS)


def test_the_text() -> None:
    assert show_status(STATUS).splitlines() == [
        "epoch     4",
        "changing  False",
        "lag       0.123457",
        "view      -",
        "members",
        "  id   rank  suspect",
        "  a    0     -",
        "  bcd  1     True",
        "metrics",
        "  steps  12",
        "  empty  -",
    ]


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        assert run("status", f"127.0.0.1:{port}") == 1
    error = capsys.readouterr().err
    assert error.startswith("ftlib: error: no member answers at 127.0.0.1")
    assert error.count("\n") == 1


def test_silence_has_a_deadline(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        assert run("status", f"127.0.0.1:{mute.getsockname()[1]}", "--timeout", "0.1") == 1
    assert "did not answer within 0.1 s" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["nonsense", "host:port", "1.2.3.4:99999"])
def test_a_malformed_address_is_named(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("status", address) == 2
    assert f"{address!r} is not an address" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run", "x.py"], "Missing option '-n'"),
        (["run", "-n", "two", "x.py"], "'two' is not a valid integer"),
        (["run", "-n", "0", "x.py"], "0 is not in the range"),
        (["run", "-n", "2"], "Missing argument 'SCRIPT'"),
        (["run", "-n", "2", "--min", "3", __file__], "--min 3"),
        (["run", "-n", "2", "no-such-script.py"], "no script no-such-script.py"),
        (["run", "-n", "2", "-m", "no_such_module"], "no module named no_such_module"),
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
