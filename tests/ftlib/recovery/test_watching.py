"""A joiner that takes its time is watched from outside: by the command line, by Prometheus, and by its own log."""

from __future__ import annotations

import functools
import json
import logging
import re
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse
from torch import nn

from consensus import format_address
from ftlib import FTLib
from ftlib.cli.main import main
from ftlib.recovery.joiner import progress_log
from ftlib.recovery.joiner.limits import RateLimit
from tests.ftlib.recovery.pupils import Pupil, assert_equal
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import at_once, company, in_thread

WIDTH = 1024
"""Some 13 MB of state with Adam's: four blocks."""
BANDWIDTH = 6_000_000


@contextmanager
def joining(extra: bool = False, **settings: Any) -> Iterator[tuple[list[Pupil], Pupil]]:
    """Two that train, and a third one on its way to them. ``extra``: all register something more."""
    with company(2, "gloo") as crew:
        over = threading.Event()

        def pupil_of(ft: FTLib, seed: int) -> Pupil:
            return Pupil(ft, seed, width=WIDTH, **({"extra": nn.Linear(1, 1)} if extra else {}))

        pupils = at_once(*[functools.partial(pupil_of, ft, seed) for seed, ft in enumerate(crew.members)])
        threads = [in_thread(functools.partial(pupil.train, over)) for pupil in pupils]
        eventually(lambda: pupils[0].ft.step > 3, "they train")
        joiner = pupil_of(crew.init(**settings), 99)
        threads.append(in_thread(functools.partial(joiner.train, over)))
        try:
            yield pupils, joiner
        finally:
            over.set()
            at_once(*[ft.close for ft in crew.members])
            for thread in threads:
                thread.join(TIMEOUT)


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command line says."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["status", *arguments])
    assert ended.value.code == 0
    return capsys.readouterr().out


def scraped(address: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=TIMEOUT) as response:
        families = parse(response.read().decode())
    return {sample.name: sample.value for family in families for sample in family.samples}


def of(pupil: Pupil, caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What it said of itself."""
    own = pupil.ft._plane.member_id
    return [record for record in caplog.records if getattr(record, "member", "") == own]


def test_a_joiner_is_watched(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "ftlib")
    monkeypatch.setattr(progress_log, "EVERY", 0.2)
    with joining(recovery_bandwidth=BANDWIDTH) as (pupils, joiner):
        own, other = (format_address(ft._consensus.member.address) for ft in (joiner.ft, pupils[0].ft))

        def some() -> bool:
            recovery = joiner.ft.metrics()["recovery"]
            return recovery is not None and 0 < recovery["got"] < recovery["total"]

        looked = threading.Event()
        take = RateLimit.take

        def until_looked(pace: RateLimit, count: int, go_on: Callable[[], bool]) -> bool:
            """The rest of the state does not arrive while somebody looks, which may take a busy machine seconds."""
            return take(pace, count, go_on) and (not some() or looked.wait(TIMEOUT))

        monkeypatch.setattr(RateLimit, "take", until_looked)
        eventually(some, "some of the state arrives")
        page = scraped(own)
        answer = json.loads(told(capsys, own, "--json"))
        seen, seen_by_another = told(capsys, own), told(capsys, other)
        looked.set()

        nbytes = sum(parameter.numel() for parameter in joiner.model.parameters()) * 4 * 3
        assert (page["ftlib_catching_up"], page["ftlib_catchup_state_bytes"]) == (1, nbytes)
        assert 0 < page["ftlib_catchup_received_bytes"] < nbytes
        assert 0 <= page["ftlib_catchup_bytes_per_second"] < 2 * BANDWIDTH
        assert page["ftlib_catchups_total"] == 0
        assert not answer["ftlib"]["level"]
        recovery = answer["ftlib"]["recovery"]
        assert recovery["total"] == nbytes
        assert 0 < recovery["got"] < nbytes
        assert recovery["pending"] > 0
        # While nothing more arrives the rate falls, until none is told.
        words = r", gets the state: [\d.]+ [kM]?B of 12.7 MB \(\d+%\)( at [\d.]+ [kM]?B/s)?(, .+ left)?; \d+ average"
        assert re.search(rf"(in call \d+|outside of calls).*{words}", seen), "the program goes on from call to call meanwhile"
        assert re.search(words, seen_by_another), "each tells of the others, too"

        eventually(lambda: len(joiner.hashes) > 3, "it has caught up")
        found = joiner.ft.metrics()
        assert found["recovery"] is None
        assert found["level"]
        assert (found["recoveries"], found["recovery_fallbacks"], found["state_loads"]) == (1, 0, 1)
        assert found["state_bytes"] >= nbytes
        assert assert_equal(*pupils, joiner) > 2
    records = of(joiner, caplog)
    under_way = [record for record in records if record.ftlib_event == "recovery"]
    assert len(under_way) > 1
    assert all(record.getMessage().startswith("getting the state: ") for record in under_way)
    [end] = [record for record in records if record.ftlib_event == "caught_up"]
    words = r"caught up: 12.7 MB of state in [\d.]+ s \([\d.]+ [kM]B/s\), (\d+) averages? replayed, counts from call (\d+) on"
    (replayed, call) = (int(number) for number in re.fullmatch(words, end.getMessage()).groups())
    assert replayed == found["averages_replayed"] > 0
    assert call == end.call


def test_one_that_the_others_wait_for(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """As what is registered may be part of a step, and nobody has told how to repeat one."""
    caplog.set_level(logging.INFO, "ftlib")
    monkeypatch.setattr(progress_log, "EVERY", 0.0)
    with joining(extra=True) as (pupils, joiner):
        eventually(lambda: len(joiner.hashes) > 3, "it has the state")
        found = joiner.ft.metrics()
        assert (found["recoveries"], found["recovery_fallbacks"], found["recovery"]) == (0, 1, None)
        assert assert_equal(*pupils, joiner) > 2
    records = of(joiner, caplog)
    assert any("as extra may change how averages are applied: pass apply=" in record.getMessage() for record in records)
    lines = [record.getMessage() for record in records if record.ftlib_event == "recovery"]
    assert any(line.endswith("; the others wait for it") and " of 12.7 MB (" in line for line in lines)
