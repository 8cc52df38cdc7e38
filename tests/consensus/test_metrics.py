"""Prometheus text, read back by Prometheus' own parser."""

from __future__ import annotations

import os
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from consensus.member import format_address
from consensus.runtime.net.metrics import CONTENT_TYPE, render
from ftlib.common.counters import CALLS, PAUSES

from .fake_core import rig

STATUS: dict[str, Any] = {
    "job": 'lab "one"',
    "member": "a1" * 8,
    "address": "10.0.0.1:7000",
    "meta": {"name": "worker 0", "pid": "1"},
    "protocol_version": 1,
    "policy": "majority",
    "active_epoch": 4,
    "changing": True,
    "awareness": 2,
    "stopped": None,
    "members": [{"id": "x", "status": "alive"}, {"id": "y", "status": "suspect"}],
    "view_changes": {"changes": {"founded": 1, "proof": 2}, "removed": {"proof": 3}, "joined": 5},
    "tick_delay_max": 0.25,
    "tick_delay": {"count": 10, "sum": 0.5},
    "messages": {
        "sent": {"Ping": {"messages": 7, "bytes": 700}},
        "received": {"Ack": {"messages": 6, "bytes": 600}},
        "dropped": {"malformed": {"messages": 3, "bytes": 9}},
    },
    "store": {"open": True, "away_since": None, "operations": 30, "requests": {"list": 4, "write": 20}, "failures": 2},
    "history": [{"epoch": 4}],
    "ftlib": {
        "build": {"version": "0.1.0", "torch": "2.13.0", "python": "3.11.2"},
        "seconds": {"computing": 6.0, "averaging": 2.0, "waiting": 1.0, "changing": 0.75, "recovering": 0.25},
        "goodput": 0.8,
        "phase": "active",
        "rank": 1,
        "step": 90,
        "calls": 99,
        "calls_by_transport": {"gloo": 9, "rehearsal": 90},
        "accelerator_ready": True,
        "accelerator_starts": 5,
        "accelerator_troubles": 6,
        "accelerator_stops": 7,
        "accelerator_frees": 8,
        "accelerator_leaks": 9,
        "accelerator_start_seconds": {"count": 2, "sum": 3.5, "last": 1.5, "max": 2.0, "buckets": [[1.0, 0], [2.0, 2]]},
        "redone": 1,
        "adopted": 2,
        "donated": 3,
        "vetoed": 8,
        "bytes_averaged": 4096,
        "rebuild_failures": 0,
        "children_replaced": 4,
        "rejoins": 2,
        "state_loads": 1,
        "state_bytes": 10,
        "recovery": {"total": 1000, "got": 250, "rate": 50.0, "left": 15.0, "pending": 4, "braking": True},
        "recoveries": 6,
        "recovery_fallbacks": 7,
        "averages_replayed": 70,
        "checkpoints": 11,
        "checkpoint_failures": 12,
        "checkpoints_skipped": 13,
        "checkpoint_step": 80,
        "last_pause": 0.02,
        "pauses": {"count": 3, "sum": 0.09, "last": 0.02, "max": 0.04, "buckets": [[0.02, 1], [0.05, 3]]},
        "call_seconds": {"count": 99, "sum": 0.99, "last": 0.01, "max": 1.0, "buckets": [[0.01, 98]]},
        "step_times": {
            "a1" * 8: {"last": 0.25, "median": 0.1, "slow_for": 12, "straggler": True},
            "aabbccddeeff": {"last": 0.5, "median": 0.1, "slow_for": 0, "straggler": False},  # of another: not told here
        },
    },
}


def samples(status: dict[str, Any]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """By name and labels, without job and member, which every sample must have."""
    found = {}
    for family in parse(render(status).decode()):
        assert family.documentation, family.name
        for sample in family.samples:
            labels = dict(sample.labels)
            assert (labels.pop("job"), labels.pop("member")) == ('lab "one"', "worker 0"), sample
            key = (sample.name, tuple(sorted(labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


def test_every_number_arrives() -> None:
    found = samples(STATUS)
    plain = {name: value for (name, labels), value in found.items() if not labels}
    assert plain == {
        "ftlib_store_up": 1,
        "ftlib_store_operations_total": 30,
        "ftlib_store_failures_total": 2,
        "ftlib_view_epoch": 4,
        "ftlib_view_changing": 1,
        "ftlib_awareness": 2,
        "ftlib_tick_delay_max_seconds": 0.25,
        "ftlib_tick_delay_seconds_count": 10,
        "ftlib_tick_delay_seconds_sum": 0.5,
        "ftlib_members": 2,
        "ftlib_members_suspected": 1,
        "ftlib_members_joined_total": 5,
        "ftlib_stopped": 0,
        "ftlib_answering": 1,
        "ftlib_acting": 1,
        "ftlib_goodput": 0.8,
        "ftlib_rank": 1,
        "ftlib_last_recovery_seconds": 0.02,
        "ftlib_steps_total": 90,
        "ftlib_calls_total": 99,
        "ftlib_accelerator_ready": 1,
        "ftlib_accelerator_starts_total": 5,
        "ftlib_accelerator_troubles_total": 6,
        "ftlib_accelerator_stops_total": 7,
        "ftlib_accelerator_frees_total": 8,
        "ftlib_accelerator_leaks_total": 9,
        "ftlib_accelerator_start_seconds_count": 2,
        "ftlib_accelerator_start_seconds_sum": 3.5,
        "ftlib_step_seconds": 0.25,
        "ftlib_straggler": 1,
        "ftlib_calls_redone_total": 1,
        "ftlib_calls_adopted_total": 2,
        "ftlib_results_donated_total": 3,
        "ftlib_averages_vetoed_total": 8,
        "ftlib_averaged_bytes_total": 4096,
        "ftlib_rebuild_failures_total": 0,
        "ftlib_children_replaced_total": 4,
        "ftlib_rejoins_total": 2,
        "ftlib_state_loads_total": 1,
        "ftlib_state_bytes_total": 10,
        "ftlib_catching_up": 1,
        "ftlib_catchup_state_bytes": 1000,
        "ftlib_catchup_received_bytes": 250,
        "ftlib_catchup_bytes_per_second": 50,
        "ftlib_catchup_pending_averages": 4,
        "ftlib_catchup_waited_for": 1,
        "ftlib_catchups_total": 6,
        "ftlib_catchup_fallbacks_total": 7,
        "ftlib_averages_replayed_total": 70,
        "ftlib_checkpoints_total": 11,
        "ftlib_checkpoint_failures_total": 12,
        "ftlib_checkpoints_skipped_total": 13,
        "ftlib_checkpoint_step": 80,
        "ftlib_recovery_seconds_count": 3,
        "ftlib_recovery_seconds_sum": 0.09,
        "ftlib_call_seconds_count": 99,
        "ftlib_call_seconds_sum": 0.99,
    }
    labelled = {key: value for key, value in found.items() if key[1] and "process" not in key[0] and key[0] != "ftlib_info"}
    assert labelled == {
        ("ftlib_build_info", (("python", "3.11.2"), ("torch", "2.13.0"), ("version", "0.1.0"))): 1,
        ("ftlib_seconds_total", (("state", "computing"),)): 6.0,
        ("ftlib_seconds_total", (("state", "averaging"),)): 2.0,
        ("ftlib_seconds_total", (("state", "waiting"),)): 1.0,
        ("ftlib_seconds_total", (("state", "changing"),)): 0.75,
        ("ftlib_seconds_total", (("state", "recovering"),)): 0.25,
        ("ftlib_view_changes_total", (("cause", "founded"),)): 1,
        ("ftlib_view_changes_total", (("cause", "proof"),)): 2,
        ("ftlib_members_removed_total", (("cause", "proof"),)): 3,
        ("ftlib_control_messages_total", (("direction", "sent"), ("type", "Ping"))): 7,
        ("ftlib_control_messages_total", (("direction", "received"), ("type", "Ack"))): 6,
        ("ftlib_control_bytes_total", (("direction", "sent"),)): 700,
        ("ftlib_control_bytes_total", (("direction", "received"),)): 600,
        ("ftlib_control_dropped_total", (("reason", "malformed"),)): 3,
        ("ftlib_store_requests_total", (("kind", "list"),)): 4,
        ("ftlib_store_requests_total", (("kind", "write"),)): 20,
        ("ftlib_transport_calls_total", (("transport", "gloo"),)): 9,
        ("ftlib_transport_calls_total", (("transport", "rehearsal"),)): 90,
        ("ftlib_accelerator_start_seconds_bucket", (("le", "1.0"),)): 0,
        ("ftlib_accelerator_start_seconds_bucket", (("le", "2.0"),)): 2,
        ("ftlib_accelerator_start_seconds_bucket", (("le", "+Inf"),)): 2,
        ("ftlib_recovery_seconds_bucket", (("le", "0.02"),)): 1,
        ("ftlib_recovery_seconds_bucket", (("le", "0.05"),)): 3,
        ("ftlib_recovery_seconds_bucket", (("le", "+Inf"),)): 3,
        ("ftlib_call_seconds_bucket", (("le", "0.01"),)): 98,
        ("ftlib_call_seconds_bucket", (("le", "+Inf"),)): 99,
    }


def test_a_training_process_that_does_not_answer_is_told() -> None:
    """Its numbers are those of its last answer, if there was any; without a word they would pass for new ones."""
    for known in ({}, STATUS["ftlib"]):
        assert samples({**STATUS, "ftlib": {**known, "stale": True}})["ftlib_answering", ()] == 0
    assert ("ftlib_answering", ()) not in samples({key: value for key, value in STATUS.items() if key != "ftlib"})


def test_the_worker_and_its_agent_are_told_apart() -> None:
    """Process 1 stands for the worker; this one is where an agent would be."""
    while sum(os.times()[:2]) < 0.02:  # the kernel counts in steps of 0.01 s, and this process may be a fresh fork of pytest's
        pass
    found = {(name, dict(labels)["process"]): value for (name, labels), value in samples(STATUS).items() if "process" in name}
    names = {name for name, _ in found}
    assert names >= {"ftlib_process_cpu_seconds_total", "ftlib_process_resident_memory_bytes", "ftlib_process_threads"}
    assert all(found[name, "agent"] > 0 for name in names)
    assert found["ftlib_process_start_time_seconds", "worker"] <= found["ftlib_process_start_time_seconds", "agent"]
    alone = samples({**STATUS, "meta": {"name": "worker 0", "pid": str(os.getpid())}})
    assert {dict(labels)["process"] for (name, labels) in alone if "process" in name} == {"worker"}, "an agent on a thread"


def test_sixty_four_members_have_no_more_than_nine_thousand_series() -> None:
    """Nothing grows with the number of members: each of 64 exports at most 140, with a store, and after as many
    kinds of messages as a job with a joiner sees (see ``tests/processes/watching/test_prometheus.py`` for a real one).
    """
    traffic = {f"Kind{number}": {"messages": 1, "bytes": 10} for number in range(16)}
    everybody = {f"{number:012}": {"last": 0.1, "median": 0.1, "slow_for": 0, "straggler": False} for number in range(64)}
    times = {**everybody, "a1" * 8: STATUS["ftlib"]["step_times"]["a1" * 8]}
    upper = {key: value for key, value in STATUS["ftlib"].items() if not key.startswith("accelerator")}
    pauses = {"count": 1, "sum": 1.0, "buckets": [[bound, 1] for bound in PAUSES]}
    calls = {"count": 1, "sum": 1.0, "buckets": [[bound, 1] for bound in CALLS]}
    many = {
        **STATUS,
        "members": [{"id": member_id, "status": "alive"} for member_id in times],
        "ftlib": {**upper, "step_times": times, "pauses": pauses, "call_seconds": calls, "calls_by_transport": {"gloo": 1}},
    }
    busy = {**many, "messages": {**STATUS["messages"], "sent": traffic, "received": traffic}}
    assert len(samples(busy)) * 64 <= 9_000, len(samples(busy))


def test_what_is_not_there_is_left_out() -> None:
    found = samples({"job": 'lab "one"', "meta": {"name": "worker 0"}})
    assert {name for name, _ in found} == {"ftlib_info"}


def test_who_has_the_state_tells_no_more_of_its_coming() -> None:
    found = samples({**STATUS, "ftlib": {**STATUS["ftlib"], "recovery": None}})
    assert found["ftlib_catching_up", ()] == 0
    assert not [name for name, _ in found if name.startswith("ftlib_catchup_") and not name.endswith("_total")]


def test_an_ended_member_says_so() -> None:
    assert samples({**STATUS, "stopped": "ExcludedError: ..."})["ftlib_stopped", ()] == 1


@pytest.mark.parametrize("change", [{"open": False}, {"away_since": 1e9}])
def test_a_store_that_is_away(change: dict[str, Any]) -> None:
    assert samples({**STATUS, "store": {**STATUS["store"], **change}})["ftlib_store_up", ()] == 0


async def test_an_agent_serves_it() -> None:
    """Without a layer above."""
    async with rig() as r, aiohttp.ClientSession() as session:
        async with session.get(f"http://{format_address(r.member.address)}/metrics") as response:
            assert (response.status, response.headers["Content-Type"]) == (200, CONTENT_TYPE)
            families = {family.name: family for family in parse(await response.text())}
        assert families["ftlib_info"].samples[0].labels["member_id"] == r.member.id
