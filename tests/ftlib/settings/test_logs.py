"""What ``log_format`` and ``log_level`` do to the process's logging, that they do nothing unasked; handlers that raise."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from consensus import CarefulLogger
from ftlib.common.logs import configure
from ftlib.errors import ConfigError
from ftlib.settings.config import resolve
from tests.ftlib.crews.workers import Job, Worker
from tests.harness.shipping import shipping_from


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    logger = logging.getLogger("ftlib")
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def test_unasked_nothing_is_touched() -> None:
    logger = logging.getLogger("ftlib")
    before = (list(logger.handlers), logger.level, logger.propagate)
    configure()
    assert (list(logger.handlers), logger.level, logger.propagate) == before


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json")
    logging.getLogger("ftlib.consensus").info(
        "epoch %d: with\nX", 7, extra={"ftlib_event": "view", "epoch": 7, "joined": ["a"]}
    )
    logging.getLogger("ftlib").debug("unseen")
    try:
        raise ValueError("for the log")
    except ValueError:
        logging.getLogger("ftlib").exception("failed")
    first, second = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    time = first.pop("time")
    assert time.startswith("20") and "T" in time
    assert first == {
        "level": "INFO",
        "logger": "ftlib.consensus",
        "message": "epoch 7: with\nX",
        "ftlib_event": "view",
        "epoch": 7,
        "joined": ["a"],
    }
    assert "ValueError: for the log" in second["exc_info"]


def test_plain_lines_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A second lifetime in the process adds no second handler, and the root logger does not repeat the line."""
    configure("plain")
    configure(log_level="warning")
    logging.getLogger("ftlib").info("unseen")
    logging.getLogger("ftlib").warning("seen")
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(" WARNING ftlib: seen")


def test_the_settings() -> None:
    settings = resolve({"log_format": "JSON"}, {}, {"FTLIB_LOG_LEVEL": "debug"})
    assert (settings.log_format, settings.log_level) == ("json", "debug")
    with pytest.raises(ConfigError, match="FTLIB_LOG_FORMAT='xml': choose one of plain, json"):
        resolve({}, {}, {"FTLIB_LOG_FORMAT": "xml"})


def test_what_is_imported_late() -> None:
    """Neither the formatter nor the Prometheus client costs those who do not ask for them."""
    code = "import sys, ftlib.common.logs, consensus; print({name.split('.')[0] for name in sys.modules})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "consensus" in result.stdout
    assert "prometheus_client" not in result.stdout
    assert "pythonjsonlogger" not in result.stdout


def test_a_handler_that_raises_costs_its_records_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """The first of them comes from the thread that builds groups, at the first view."""

    def body(worker: Worker) -> int:
        for _ in range(3):
            assert worker.ft.allreduce_average(torch.ones(3))
        return worker.ft.size

    with shipping_from("ftlib") as handler:
        handler.away = True
        with Job(2) as job:
            assert job.run({"w0": body, "w1": body}) == {"w0": 2, "w1": 2}
        assert handler.lost >= 2
    assert "a record of ftlib is lost:\nTraceback" in capsys.readouterr().err


def test_records_name_the_line_that_wrote_them(caplog: pytest.LogCaptureFixture) -> None:
    log = CarefulLogger("ftlib")
    for write in (log.warning, log.exception):
        write("here")
    log.log(logging.WARNING, "here")
    assert {(record.funcName, record.name) for record in caplog.records} == {
        (
            "test_records_name_the_line_that_wrote_them",
            "ftlib",
        )
    }
