"""Bad input with real processes: a clear error at whoever is to blame; the others go on."""

from __future__ import annotations

import re
import signal
import socket
from typing import Any

import pytest

from consensus.config import PROTOCOL_VERSION
from tests.processes.stage.stage import Player, Stage, healthy, one_line

pytestmark = [pytest.mark.process]


# Before anything starts


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"consensus": "gosip"}, "'gosip'.*gossip"),
    ({"consensus": "shared_storage", "policy": "any"}, "policy=any.*gossip"),
    ({"consensus": "shared_storage", "storage": "redi://host"}, "storage.*redi.*redis"),
    ({"framework": "glo"}, "'glo'.*gloo"),
    ({"framework": "isolated:memory"}, "'isolated:memory'.*isolated:gloo"),
    ({"exclude_afer": 3}, "exclude_afer.*did you mean exclude_after"),
    ({"min_size": 3, "max_size": 2}, "max_size=2.*min_size=3"),
    ({"step_timeout": "soon"}, "step_timeout.*'soon'.*500 ms"),
    ({"join_timeout": -1}, "join_timeout.*positive"),
    ({"policy": "most"}, "policy.*majority"),
    ({"introducers": "localhost"}, "introducers.*'localhost'.*host:port"),
    ({"introducers": ["127.0.0.1:0"]}, "introducers.*127.0.0.1:0.*port"),
    ({"bind": "127.0.0.1:99999"}, "bind.*99999.*port"),
    ({"bind": "no.such.host.invalid:0"}, "bind.*no.such.host.invalid.*address of this host"),
    ({"bind": "0.0.0.0:0"}, "bind.*0.0.0.0.*secret_file.*insecure=True"),
    ({"bind": "198.51.100.7:0"}, "bind.*198.51.100.7.*secret_file.*insecure=True"),
    ({"secret": "x"}, "secret.*too short.*ftlib keys new"),
    ({"config": "/no/such/file.toml"}, "/no/such/file.toml.*config="),
    ({"config": {"exclude_afer": 3}}, "exclude_afer.*did you mean exclude_after"),
]


def test_wrong_settings(stage: Stage) -> None:
    """One after the other in one process, which then starts as if nothing had been."""
    player = stage.start("misconfigured", {"wrong": [settings for settings, _ in WRONG]})
    assert stage.ended(player) == [0]
    for (settings, pattern), line in zip(WRONG, player.events("refused"), strict=True):
        assert re.search(f"^ConfigError: .*{pattern}", one_line(f"{line['kind']}: {line['text']}")), (settings, line)
    assert player.event("done") is not None
    assert player.events("left behind") == []


def test_port_in_use(stage: Stage) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        player = stage.start("train", bind=f"127.0.0.1:{port}")
        assert stage.ended(player) == [1]
    assert re.search(rf"ConfigError: .*{port}.*in use.*0 for any", one_line(player.error))


# Finding the others


def test_introducer_not_there_other_job_version_terms(stage: Stage) -> None:
    good = stage.found("train", "train")
    stage.going(*good)
    free = socket.socket()
    free.bind(("127.0.0.1", 0))  # bound, not listening: refused
    nobody = f"127.0.0.1:{free.getsockname()[1]}"
    absent = stage.start("train", introducers=[nobody], join_timeout=2.0)
    other_job = stage.join("train", job="another job", join_timeout=10.0)
    version = stage.join("other_version", join_timeout=10.0)
    terms = stage.join("train", exclude_after=3.0, join_timeout=60.0)
    buckets = stage.join("train", bucket_mb=1.0)
    assert stage.ended(absent, other_job, version, terms, buckets) == [1] * 5
    free.close()
    [lonely] = stage.found("train", initial_size=3, join_timeout=2.0)
    assert re.search(rf"JoinError: .*{nobody}.*nobody listens there", one_line(absent.error))
    assert re.search("JoinError: .*job 'another job'", one_line(other_job.error)) or re.search(
        r"JoinError: .*a member of job 'test-\w+', this is 'another job'", one_line(other_job.error)
    )
    assert re.search(f"JoinError: .*speaks protocol version {PROTOCOL_VERSION}, this is 77", one_line(version.error))
    assert re.search("JoinError: .*exclude_after=3.*exclude_after=30.*make them equal", one_line(terms.error))
    assert stage.ended(lonely) == [1]
    assert re.search("JoinError: .*initial_size=3", one_line(lonely.error))
    assert re.search("JoinError: .*bucket_mb=1.*bucket_mb=16.*make them equal", one_line(buckets.error))
    stage.going(*good)
    healthy(*good)
    assert any("speaks protocol version 77" in player.output() for player in good)


@pytest.mark.parametrize(
    ("framework", "other"), [("gloo", "rehearsal"), ("rehearsal", "gloo"), ("isolated:gloo", "isolated:rehearsal")]
)
def test_frameworks_that_do_not_mix(stage: Stage, framework: str, other: str) -> None:
    """Refused at the join, not by the first call: no view changes, and no call is disturbed."""
    good = stage.found("train", "train", framework=framework)
    stage.going(*good)
    bad = stage.join("train", framework=other)
    assert stage.ended(bad) == [1]
    ours, theirs = framework.removeprefix("isolated:"), other.removeprefix("isolated:")
    assert re.search(f"JoinError: .*framework={theirs}'.*framework={ours}'.*make them equal", one_line(bad.error))
    stage.going(*good)
    healthy(*good)
    assert {call["epoch"] for player in good for call in player.calls} == {1}


def test_too_few_founders(stage: Stage) -> None:
    players = stage.found("train", "train", initial_size=3, join_timeout=2.0)
    assert stage.ended(*players) == [1, 1]
    for player in players:
        assert re.search("JoinError: .*(initial_size|belong to no cluster)", one_line(player.error)), player.error


# Tensors that differ


ATTACKS: list[dict[str, Any]] = [
    {"shapes": [2_000, 4]},
    {"shapes": [100, 4]},
    {"shapes": [3_000_000, 4]},
    {"shapes": [1_000]},
    {"shapes": [1_000, 4, 4]},
    {"shapes": [1_000, 4], "dtype": "float64"},
    {"kind": "barrier"},
    {"kind": "broadcast", "shapes": [500_000]},
    {"kind": "SUM"},
    {"kind": "MIN", "shapes": [1_004]},
]


@pytest.mark.parametrize(
    "calls", [0, pytest.param(20, marks=pytest.mark.soak)], ids=["a joiner at its first call", "after good calls"]
)
def test_mismatch_blames_the_one_and_spares_the_others(stage: Stage, calls: int) -> None:
    good = stage.found("train", "train", "train")
    stage.going(*good)
    for attack in ATTACKS:
        bad = stage.join("other", {"calls": calls, **attack})
        assert stage.ended(bad) == [1], (attack, bad.output())
        assert re.search("^StepMismatch: .*(different tensors or operations).*same", one_line(bad.error)), (attack, bad.error)
        assert bad.event("went through") is None
        stage.going(*good)
        healthy(*good)


def went_on(stage: Stage, players: list[Player]) -> None:
    """They do, ``other`` as they are."""
    before = {player.pid: len(player.events("went through")) for player in players}
    stage.until("they go on", lambda: all(len(player.events("went through")) > before[player.pid] + 3 for player in players))


def test_mismatch_with_large_tensors_in_flight(stage: Stage) -> None:
    """The many have several buckets under way when the one turns up with something small, and the other way round."""
    large = [1_500_000, 1_500_000]  # three buckets of 4 MB
    good = stage.found("other", "other", "other", given=[{"calls": 3, "shapes": large}], bucket_mb=4.0)
    for attack in ({"shapes": [1_000, 4]}, {"shapes": [1_500_001, 1_500_000]}, {"kind": "barrier"}):
        stage.until("they are at it", lambda: all(len(player.events("went through")) > 3 for player in good))
        bad = stage.join("other", {"calls": 0, "first": large, **attack}, bucket_mb=4.0)  # it comes in with one of their calls
        assert stage.ended(bad) == [1]
        assert bad.error.startswith("StepMismatch"), bad.error
        went_on(stage, good)
    healthy(*good)


@pytest.mark.parametrize("calls", [0, 10])
def test_mismatch_of_founders(stage: Stage, calls: int) -> None:
    """At the first call of all, and in lockstep; of four the one that differs."""
    parts = [{}, {"calls": calls, "shapes": [700]}, {}, {}]
    players = stage.found("train", "other", "train", "train", given=parts)
    bad = players.pop(1)
    assert stage.ended(bad) == [1]
    assert re.search("^StepMismatch: .*different tensors or operations", one_line(bad.error)), bad.error
    stage.going(*players)
    healthy(*players)


def test_mismatch_of_two_blames_both(stage: Stage) -> None:
    players = stage.found("other", "other", given=[{"calls": 5, "whole_end": True}, {"calls": 5, "shapes": [7]}])
    assert stage.ended(*players) == [1, 1]
    for player in players:
        assert one_line(player.error).startswith("StepMismatch"), player.error


def test_joiner_with_another_model(stage: Stage) -> None:
    good = stage.found("model", "model", given=[{"sizes": [3, 5], "register": True}])
    stage.until("they average", lambda: all(len(player.calls) > 3 for player in good))
    bad = stage.join("model", {"sizes": [3, 6], "register": True})
    without = stage.join("model", {"sizes": [3, 6]})
    assert stage.ended(bad, without) == [1, 1]
    assert re.search("^ConfigError: .*model.*size mismatch", one_line(bad.error)), bad.error
    assert re.search("^ConfigError: this worker registered no state", one_line(without.error)), without.error
    stage.going(*good)
    healthy(*good)


def test_state_that_only_one_registers(stage: Stage) -> None:
    orders: list[dict[str, Any]] = [{"sizes": [3]}, {"sizes": [3]}, {"sizes": [3], "register": True}]
    *good, bad = stage.found("model", "model", "model", given=orders)
    assert stage.ended(bad) == [1]
    assert re.search("^ConfigError: .*registered no state.*call register_state", one_line(bad.error)), bad.error
    before = len(good[0].calls)
    stage.until("the others go on", lambda: good[0].size == 2 and len(good[0].calls) > before + 3)
    healthy(*good)


# Gradients and tensors


def test_without_gradients(stage: Stage) -> None:
    """A None gradient contributes zeros and receives the average; where all are None, all become zeros."""
    orders = [{"sizes": [2, 3, 4], "missing": missing} for missing in ([], [1], [0, 1, 2])]
    players = stage.found("model", "model", "model", given=orders)
    stage.until("they average", lambda: all(len(player.calls) > 3 for player in players))
    for player in players:
        assert all(line["values"] == [4.0, 2.0, 4.0] and line["status"] == "SUCCESS" for line in player.calls)
    healthy(*players)
    assert "no parameter has a gradient" in players[2].output()


def test_unsupported_tensors(stage: Stage) -> None:
    players = stage.found("train", "bad_tensor", given=[{"total": 15}, {"calls": 10}])
    bad = players[1]
    assert stage.ended(*players) == [0, 0]
    refused = {line["name"]: f"{line['kind']}: {line['text']}" for line in bad.events("refused")}
    for name, pattern in {
        "meta": "on meta",
        "int8": "int8.*floating-point",
        "complex": "complex64",
        "sparse": "sparse",
        "read-only": "read-only",
        "strings": "<U1",
        "used up": "nothing to average.*iterator",
        "no trainable": "nothing to average.*requires_grad",
        "text": "not str",
        "number": "not float",
        "None": "not NoneType",
        "names": "pairs of name and parameter",
        "named": "pairs of name and parameter",
    }.items():
        assert re.search(f"^ConfigError: .*{pattern}", one_line(refused.pop(name)))
    assert not refused
    assert len(bad.calls) == 15


def test_weights_and_arrays(stage: Stage) -> None:
    orders = [{"value": 1, "weights": [0, 3, 1, 0.5]}, {"value": 4, "weights": [0, 1, 0, 1.0]}]
    players = stage.found("weighted", "weighted", given=orders)
    assert stage.ended(*players) == [0, 0]
    for player, own in zip(players, (1.0, 4.0), strict=True):
        assert [call["status"] for call in player.calls] == ["FAIL", "SUCCESS", "SUCCESS", "SUCCESS", "SUCCESS"]
        assert [call["value"] for call in player.calls] == [own, 1.75, 1.0, 3.0, 2.5]
        assert [call["step"] for call in player.calls] == [0, 1, 2, 3, 4]


# Use against the rules


def test_two_threads(stage: Stage) -> None:
    players = stage.found("two_threads", "two_threads")
    assert stage.ended(*players) == [0, 0]
    for player in players:
        assert player.event("joined") == {**(player.event("joined") or {}), "alive": False}
        assert [call["value"] for call in player.calls] == [1.0] * 100


def test_calls_from_callbacks_and_signal_handlers(stage: Stage) -> None:
    players = stage.found("calls_back", "calls_back", given=[{}, {"late": True}])
    stage.event(players[0], "alarmed")
    players[1].signal(signal.SIGUSR2)
    assert stage.ended(*players) == [0, 0]
    for player in players:
        first, second, *rest = stage.event(player, "seen")["seen"]
        assert re.match(r"view 1 [01] 2 True False True", first)
        assert re.match("ConfigError: .*on_view_change", one_line(second))
        for text in rest:
            assert re.match("ConfigError: barrier.* within another call", one_line(text))
    assert len(stage.event(players[0], "seen")["seen"]) == 3


def test_callback_that_fails(stage: Stage) -> None:
    players = stage.found("train", "callback_fails", "train", given=[{}, {"calls": 5}, {}])
    bad = players.pop(1)
    assert stage.ended(bad) == [1]
    assert bad.error.startswith("KeyError")
    stage.going(*players)
    healthy(*players)


def test_close_in_the_middle_of_a_call(stage: Stage) -> None:
    closing, away = stage.found("closed_within", "absent", given=[{"calls": 5}])
    ended = stage.event(closing, "ended")
    assert ended["status"] == "ABORT"
    assert ended["seconds"] < 15  # the other one is away for a minute
    assert stage.event(closing, "again")["status"] == "ABORT"
    assert stage.ended(closing) == [0]
    assert away.code is None
