"""A worker is killed, and the survivors say why: status, explain, metrics and the log, from outside and by hand of the CLI."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from consensus import KeyRing
from ftlib.cli.main import main
from tests.harness.basics import TIMEOUT
from tests.harness.cluster import Cluster, Worker
from tests.harness.nursery import Nursery

pytestmark = pytest.mark.process


def ftlib(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def scrape(worker: Worker, secret: str) -> dict[str, float]:
    """Values by sample name and labels other than job and member, once the training process has answered in time."""
    deadline = time.monotonic() + TIMEOUT
    while (found := _page(worker, secret))["ftlib_answering"] != 1:
        assert time.monotonic() < deadline, f"{worker} does not answer its agent"
        time.sleep(0.05)  # between two looks
    return found


def _page(worker: Worker, secret: str) -> dict[str, float]:
    token = KeyRing([secret]).first.bearer("metrics")  # as Prometheus asks
    request = urllib.request.Request(f"http://{worker.address}/metrics", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=60) as response:
        text = response.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()) if key not in ("job", "member"))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_a_kill_is_explained(
    nursery: Nursery, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "the secret of this test"
    monkeypatch.setenv("FTLIB_SECRET", secret)
    settings = {"bucket_mb": 0.08, "log_format": "json", "secret": secret}
    with Cluster(tmp_path, nursery, sizes=[20_000, 300], pause=0.01, settings=settings) as cluster:
        workers = cluster.found(3)
        cluster.training(3)
        cluster.advanced()
        senior = json.loads(_output(capsys, "status", workers[0].address, "--json"))["coordinator"]
        ids = {worker.pid: _id(capsys, worker) for worker in workers}
        victim = next(worker for worker in workers if ids[worker.pid] != senior)
        driver = next(worker for worker in workers if ids[worker.pid] == senior)
        other = next(worker for worker in workers if worker not in (victim, driver))
        victim.kill()
        cluster.training(2)
        cluster.advanced()

        # The driver's record is told, whoever is asked.
        told = [json.loads(_output(capsys, "explain", asked.address, "--epoch", "2", "--json"))[0] for asked in (driver, other)]
        times = [change.pop("time") for change in told]  # reckoned anew for each answer
        assert abs(times[0] - times[1]) < 10
        assert told[0] == told[1]
        [removed] = told[0]["removed"]
        assert (removed["id"], removed["cause"]) == (ids[victim.pid], "proof")
        detail = removed["detail"]
        assert detail in (f"connection refused at {victim.address}", "its training process ended"), "whichever was first"
        assert removed["source"] in ids.values()
        assert set(told[0]["reports"]) == set(told[0]["readies"]) == {ids[driver.pid], ids[other.pid]}
        assert told[0]["phases"]["total"] < 100
        assert abs(times[0] - time.time()) < 300

        text = _output(capsys, "explain", other.address)
        assert f"without {ids[victim.pid][:6]}@{victim.address}: {detail} (proof, from " in text
        assert text.count("epoch ") == 2
        shown = _output(capsys, "status", other.address)
        assert "epoch 2 · 2 members" in shown
        assert f"{ids[driver.pid][:6]}" in shown
        assert victim.address not in shown.split("remarks")[0].split("last change")[1].split("\n", 1)[1]

        page = scrape(other, secret)
        assert (page["ftlib_view_epoch"], page["ftlib_members"], page["ftlib_acting"]) == (2, 2, 1)
        assert page["ftlib_view_changes_total{cause=proof}"] == page["ftlib_members_removed_total{cause=proof}"] == 1
        assert page["ftlib_recovery_seconds_count"] == 1
        assert 0 < page["ftlib_recovery_seconds_sum"] < 100
        # A call is counted as it ends, its time once its result is delivered: one may be between the two.
        assert page["ftlib_calls_total"] - page["ftlib_call_seconds_count"] in (0, 1)
        assert page["ftlib_calls_total"] >= page["ftlib_steps_total"] - 1 > 1
        assert page["ftlib_transport_calls_total{transport=gloo}"] == page["ftlib_calls_total"]
        assert page["ftlib_averaged_bytes_total"] >= 4 * 20_300 * page["ftlib_calls_total"]
        assert page["ftlib_control_messages_total{direction=sent,type=Ready}"] >= 2

        # One structured line a view change at each worker, and every line is JSON.
        for worker in (driver, other):
            lines = [json.loads(line) for line in worker.output().splitlines() if line.startswith("{")]
            views = [line for line in lines if line.get("ftlib_event") == "view"]
            assert [(line["level"], line["epoch"], line["size"]) for line in views] == [("INFO", 1, 3), ("INFO", 2, 2)]
            last = views[-1]
            assert (last["member"], last["driver"]) == (ids[worker.pid], told[0]["driver"])
            assert last["removed"] == [removed]
            assert f"(dead: {detail}" in last["message"]
            assert last["message"].endswith(f"; led by {told[0]['driver'][:6]}")
            assert {line["ftlib_event"] for line in lines} >= {"start", "dead", "view"}
            assert all(line["job"] == views[0]["job"] and line["logger"] in ("ftlib", "ftlib.consensus") for line in lines)
            assert worker.output().count("epoch 2: without") == 1, "shown once, though the program configured logging too"

        cluster.drain()
        assert not list(cluster.faults())
    with socket.socket() as free:  # the address of one that has ended may be another test's by now
        free.bind(("127.0.0.1", 0))  # bound, not listening: refused
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
        assert ftlib("explain", nobody) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"ftlib: error: no member answers at {nobody}")
    assert error.count("\n") == 1


def _output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert ftlib(*arguments, "--timeout", "60") == 0
    return capsys.readouterr().out


def _id(capsys: pytest.CaptureFixture[str], worker: Worker) -> Any:
    return json.loads(_output(capsys, "status", worker.address, "--json"))["member"]


def test_an_agent_has_no_torch_whatever_is_told() -> None:
    """Not even after it was asked for facts of which some are of torch's classes: to import it would keep it from its pings."""
    text = """
import json, os, pathlib, sys, urllib.request
import torch
from consensus import format_address
from ftlib import FTLib

with FTLib.init(initial_size=1, agent="process") as ft:
    ft.add_metrics("mine", lambda: {"torch": torch.__version__, "tensor": torch.ones(1), "number": torch.ones(1).numpy()[0]})
    assert ft.allreduce_average(torch.ones(3))
    address = format_address(ft._consensus.member.address)
    with urllib.request.urlopen(f"http://{address}/status", timeout=120) as answer:
        facts = json.load(answer)["ftlib"]
    assert facts["build"]["torch"] == facts["mine"]["torch"] == str(torch.__version__), facts
    assert facts["mine"]["number"] == 1.0, facts
    tasks = pathlib.Path("/proc/self/task").iterdir()
    agents = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    assert agents, "the agent is a process of its own"
    heavy = [pid for pid in agents if "libtorch" in pathlib.Path(f"/proc/{pid}/maps").read_text()]
sys.exit(str(heavy) if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
