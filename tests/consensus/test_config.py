"""What ``Config`` takes: it refuses what cannot work, and names it."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest

from consensus import Config, ConfigError, Home, Mode, Policy


@pytest.mark.parametrize("name", [item.name for item in fields(Config) if item.type == "Seconds"])
@pytest.mark.parametrize("wrong", [0, -1.0, math.nan, math.inf, 1e10, 10**400, True, "2", None])
def test_durations_are_numbers_above_0_that_can_be_waited_for(name: str, wrong: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name}=.*: expected seconds above 0"):
        Config(**{name: wrong})


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"introducers": "127.0.0.1:7000"}, "introducers='127.0.0.1:7000': expected strings in a tuple"),
        ({"introducers": ("127.0.0.1:\u00b2",)}, "introducers: .* is not an address"),
        ({"introducers": (("127.0.0.1", 7000),)}, "introducers=.*: expected strings"),
        ({"policy": "majority"}, "policy='majority': expected Policy.MAJORITY or "),
        ({"mode": "passive"}, "mode='passive': expected Mode.ACTIVE or "),
        ({"agent": "thread"}, "agent='thread': expected Home.PROCESS or "),
        ({"liveness": None}, "liveness=None: expected Liveness.PINGS or "),
        ({"initial_size": 2.5}, "initial_size=2.5: expected a whole number of at least 1"),
        ({"initial_size": 0}, "initial_size=0: expected"),
        ({"max_size": 0}, "max_size=0: expected"),
        ({"indirect_probes": -1}, "indirect_probes=-1: expected"),
        ({"drift": math.nan}, "drift=nan: expected"),
        ({"link_timeout": math.inf}, "link_timeout=inf: expected"),
        ({"insecure": "no"}, "insecure='no': expected True or False"),
        ({"job": 5}, "job=5: expected a string"),
        ({"job": "caf\udce9"}, r"job='caf\\udce9' is no Unicode"),
        ({"agreement": "replica=\udce9"}, "agreement=.* is no Unicode"),
        ({"advertise": 7000}, "advertise=7000: expected a string"),
        ({"socket_fds": ("5", "6")}, "socket_fds=.*: expected whole numbers"),
        ({"socket_fds": (5,)}, "socket_fds takes two descriptors"),
    ],
)
def test_what_cannot_work_is_named(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=f"^{text}"):
        Config(**settings)


@pytest.mark.parametrize("name", ["secret", "storage", "storage_password"])
def test_what_is_secret_is_not_shown(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: expected a string") as refusal:
        Config(**{name: b"sixteen bytes or more"})
    assert "sixteen" not in str(refusal.value)


def test_what_works() -> None:
    given = Config(agent=Home.THREAD, policy=Policy.ANY, mode=Mode.PASSIVE, exclude_after=1, link_timeout=0, max_size=None)
    assert given == Config(**{item.name: getattr(given, item.name) for item in fields(given)})
    rows = Config(introducers=["127.0.0.1:7000"], secret=["sixteen bytes or more"])  # type: ignore[arg-type]
    assert (rows.introducers, rows.secrets) == (("127.0.0.1:7000",), ("sixteen bytes or more",))
    hash(rows)
