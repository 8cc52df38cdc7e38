"""A real Prometheus: it finds the members by any of them, follows a death and a join, and every expression of the board and of
the rules means something to it. What it says of the files is asked of its own ``promtool``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from consensus import KeyRing
from consensus.tools.metrics import METRICS
from ftlib.cli.main import main
from ftlib.cli.observability.board import expressions
from ftlib.cli.observability.files import write
from ftlib.cli.observability.rules import ALERTS, RECORDINGS
from ftlib.errors import ConfigError
from tests.documents.pages import ROOT
from tests.harness.basics import TIMEOUT
from tests.harness.cluster import Cluster
from tests.harness.nursery import Nursery
from tests.harness.servers import Server

LIMIT = 120.0
SERIES = 140
"""Of one member: 64 have 8,960."""
INTERVAL = "1s"
BOARD = [expression for metric in METRICS if metric.board for expression, _ in expressions(metric)]


class Prometheus(Server):
    """One that writes its data into ``directory``, configured by ``prometheus.yml`` there."""

    program = "prometheus"
    package = "prometheus"
    ready = "Server is ready to receive web requests"

    def command(self) -> list[str]:
        """See ``Server``."""
        where = [f"--storage.tsdb.path={self.directory / 'data'}", f"--web.listen-address=127.0.0.1:{self.port}"]
        return ["prometheus", f"--config.file={self.directory / 'prometheus.yml'}", *where]

    def ask(self, path: str, **query: str) -> Any:
        """The answer's ``data``."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()}") from None

    def series(self, expression: str) -> list[dict[str, Any]]:
        """What an expression of the board, or of a rule, gives now."""
        for variable, value in {"$job": ".+", "$member": ".+", "$__rate_interval": "60s"}.items():
            expression = expression.replace(variable, value)
        found = self.ask("query", query=expression)["result"]
        assert isinstance(found, list)
        return found

    def healthy(self) -> set[str]:
        """Addresses of the targets that it gets metrics from."""
        return {
            target["discoveredLabels"]["__address__"]
            for target in self.ask("targets")["activeTargets"]
            if target["health"] == "up"
        }


def promtool(*arguments: str, text: str | None = None) -> str:
    """What it says. Skips where it is not installed."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    done = subprocess.run(["promtool", *arguments], input=text, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.process
@pytest.mark.timeout(900)
def test_prometheus_finds_the_members_and_follows_a_restart(nursery: Nursery, tmp_path: Path) -> None:
    server = Prometheus(tmp_path / "prometheus")
    checkpoints = str(tmp_path / "checkpoints")
    (tmp_path / "store").mkdir()
    settings = {"bucket_mb": 0.08, "policy": "storage", "storage": f"file://{tmp_path / 'store'}", "exclude_after": 30.0}
    habit = ["tests.processes.programs.saver:Saver", checkpoints, 20]
    task = {"sizes": [20_000, 300], "pause": 0.05, "habit": habit}
    with Cluster(tmp_path / "job", nursery, settings=settings, **task) as cluster:
        cluster.found(3)
        cluster.training(3, LIMIT)
        members = [worker.address for worker in cluster.alive()]
        token = KeyRing([cluster.secret]).first.bearer("metrics")
        write(server.directory, members, token, INTERVAL)
        assert "SUCCESS" in promtool("check", "config", str(server.directory / "prometheus.yml"))
        server.start()
        try:
            cluster.until("all are found", lambda: server.healthy() == set(members), LIMIT, 0.5)
            victim = cluster.workers[2]
            victim.kill()
            cluster.training(2, LIMIT)
            joiner = cluster.join()
            cluster.training(3, LIMIT)
            left = {members[0], members[1], joiner.address}
            assert joiner.address not in members
            cluster.until("the newcomer is found, the dead is not", lambda: server.healthy() == left, LIMIT, 0.5)

            for expression in BOARD:
                cluster.until(f"the panel of {expression} shows something", lambda: server.series(expression), LIMIT, 1.0)  # noqa: B023
            cluster.until("the rules record", lambda: all(server.series(each.name) for each in RECORDINGS), LIMIT, 1.0)
            # Where a member is too busy to answer once within the interval, its series are away until it does.
            removed = 'ftlib_members_removed_total{cause="proof"}'
            cluster.until("the death is counted, with its proof", lambda: server.series(removed), LIMIT, 1.0)
            infos = [sample["metric"] for sample in server.series("last_over_time(ftlib_info[5m])")]
            assert infos
            assert {each["instance"] for each in infos} == {each["member"] for each in infos}, (
                "an instance has the worker's name: who comes back goes on with its series"
            )
            for address in left:
                text = _page(address, token)
                count = sum(1 for line in text.splitlines() if not line.startswith("#"))
                assert count <= SERIES, f"{count} series at {address}"
                promtool("check", "metrics", text=text)
            firing = {alert["labels"]["alertname"] for alert in server.ask("alerts")["alerts"] if alert["state"] == "firing"}
            assert not firing & {alert.name for alert in ALERTS if alert.severity == "critical"}
        finally:
            server.kill()
        cluster.drain(LIMIT)
        assert not list(cluster.faults())


def _page(address: str, token: str) -> str:
    request = urllib.request.Request(f"http://{address}/metrics", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        return str(response.read().decode())


def test_the_command_writes_what_promtool_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret of this test alone\n")
    secret.chmod(0o600)
    with pytest.raises(SystemExit) as ended:
        main(["observability", str(tmp_path / "out"), "10.0.0.1:7000", "[fd00::1]:7000", "--secret-file", str(secret)])
    assert ended.value.code == 0
    said = capsys.readouterr()
    assert [Path(line).name for line in said.out.splitlines()] == ["grafana.json", "rules.yml", "prometheus.yml", "ftlib.token"]
    token = tmp_path / "out" / "ftlib.token"
    assert token.read_text() == KeyRing(["a secret of this test alone"]).first.bearer("metrics")
    assert token.stat().st_mode & 0o077 == 0
    assert f"{len(ALERTS) + len(RECORDINGS)} rules found" in promtool(
        "check", "config", str(tmp_path / "out" / "prometheus.yml")
    )


@pytest.mark.parametrize(("before", "after"), [(0o644, 0o640), (0o600, 0o600), (0o666, 0o640)])
def test_a_token_is_for_no_other_user_whatever_was_there(before: int, after: int, tmp_path: Path) -> None:
    """The group that can read it may be that of Prometheus."""
    token = tmp_path / "ftlib.token"
    token.touch()
    token.chmod(before)
    write(tmp_path, [], "the token", INTERVAL)
    assert token.read_text() == "the token"
    assert token.stat().st_mode & 0o777 == after


AS_ONE_OF_THE_GROUP = """
import os, sys
from pathlib import Path
from ftlib.cli.observability.files import write
os.chdir(sys.argv[1])
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
write(Path(), [], "the new token", "15s")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize(("mode", "after"), [(0o640, "the new token"), (0o660, "the old token")])
def test_a_token_of_another_user_is_written_or_stays(mode: int, after: str, tmp_path: Path) -> None:
    """Only its owner could keep it from others, and it is not emptied before that is known."""
    token = tmp_path / "ftlib.token"
    token.write_text("the old token")
    os.chown(token, 65534 if mode == 0o640 else 0, 65534)
    token.chmod(mode)
    tmp_path.chmod(0o777)
    command = [sys.executable, "-c", AS_ONE_OF_THE_GROUP, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert token.read_text() == after
    assert ("ftlib.token cannot be written: Operation not permitted" in done.stderr) is (after == "the old token")
    assert token.stat().st_mode & 0o777 == mode


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").symlink_to("/dev/full")
    with pytest.raises(ConfigError, match=r"rules\.yml cannot be written: No space left on device; give another directory"):
        write(tmp_path, [], None, "15s")


def test_without_a_secret_there_is_no_token(tmp_path: Path) -> None:
    paths = write(tmp_path, [], None, INTERVAL)
    assert [path.name for path in paths] == ["grafana.json", "rules.yml", "prometheus.yml"]
    assert "authorization" not in (tmp_path / "prometheus.yml").read_text()
    promtool("check", "config", str(tmp_path / "prometheus.yml"))


def test_rules_fire_and_rest(tmp_path: Path) -> None:
    """Each alert once on the series that it is for, and on none of a healthy job."""
    write(tmp_path, [], None, INTERVAL)
    (tmp_path / "test.yml").write_text((ROOT / "tests" / "processes" / "watching" / "rules.test.yml").read_text())
    assert "SUCCESS" in promtool("test", "rules", str(tmp_path / "test.yml"))
    tried = (tmp_path / "test.yml").read_text()
    assert all(f"alertname: {alert.name}" in tried for alert in ALERTS), "every alert has a case"


def test_every_name_in_the_rules_and_the_board_is_in_the_table() -> None:
    known = {metric.shown for metric in METRICS}
    known |= {f"{metric.name}_{part}" for metric in METRICS for part in ("bucket", "sum", "count")}
    for expression in [*BOARD, *(each.expression for each in (*RECORDINGS, *ALERTS))]:
        used = set(re.findall(r"(?<![:\w])ftlib_\w+", expression))
        assert used <= known, used - known


def test_every_alert_names_a_section_that_is_there() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    titles = [line.lstrip("# ") for line in page.splitlines() if line.startswith("#")]
    anchors = {"".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c == "-") for title in titles}
    assert {alert.runbook for alert in ALERTS} <= anchors


def test_the_board_is_json_with_a_panel_a_metric(tmp_path: Path) -> None:
    write(tmp_path, [], None, INTERVAL)
    board = json.loads((tmp_path / "grafana.json").read_text())
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert sorted(target["expr"] for panel in panels for target in panel["targets"]) == sorted(BOARD)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(places)) == len(places)
