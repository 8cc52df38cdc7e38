"""Random histories: from a seed and a profile of faults to a script of timed events (see ``scenario``).

It is drawn without looking at a world, so that it can be printed, replayed, and shortened. What is drawn tells what was meant;
an event about somebody who is dead by then does nothing.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from ...config import Policy
from .draws import Draft
from .fault_profile import ALL, FaultProfile
from .faults import FAULTS, Part
from .scenario import POLICIES, Scenario

SIZES = (1, 2, 3, 3, 4, 4, 4, 5, 5, 5, 8, 8, 16)
"""Founders of a random history; small ones are the ones that fork."""

GAPS = (0.003, 0.01, 0.02, 0.1, 0.3, 1.0, 2.5)
"""Seconds between two faults: within a view change, within a suspicion, longer than both."""

PACE = 1.5
"""Mean seconds between two faults of a history of a given length."""

TALL = 12
"""From so many members on a history is shorter: its messages grow with the square."""


def draw(
    seed: int,
    profile: FaultProfile = ALL,
    size: int | None = None,
    faults: int | None = None,
    seconds: float | None = None,
    *,
    policy: str = "",
) -> Scenario:
    """A history. ``size``: founders (None: drawn from ``SIZES``); ``faults``: how many to draw (None: 3 to 12).

    ``seconds``: the safety phase takes so long, with a fault every ``PACE`` seconds or so (None: faults soon after each other).
    Events that would come later are left out. ``policy``: "storage" for a history with a shared store, its kind drawn, too;
    "any" for the history of "", whose sides go on apart. ValueError for another word.
    """
    if policy not in POLICIES:
        raise ValueError(f"no histories are drawn for policy {policy!r}: choose from {', '.join(map(repr, POLICIES))}")
    if seconds is None:
        return _draw(seed, profile, size, faults, None, policy)
    drawn = _draw(seed, profile, size, round(1.5 * seconds / PACE) + 3, PACE, policy)
    events = tuple(event for event in drawn.events if event.at <= seconds)
    return replace(drawn, events=events, rest=round(seconds - (events[-1].at if events else 0.0), 6))


def _draw(seed: int, profile: FaultProfile, size: int | None, faults: int | None, pace: float | None, policy: str) -> Scenario:
    """``pace``: mean seconds between two faults; None: drawn from ``GAPS``."""
    rng = Random(f"history {seed}")
    store = policy == Policy.STORAGE.value
    refuses = profile.weights["refuse"] > 0 and rng.random() < 0.2
    size = size if size is not None else rng.choice(SIZES)
    early = rng.random() < 0.15
    fences = rng.random() < 0.25
    mesh_limit = 32 if rng.random() < 0.75 or size < 3 else 3
    draft = Draft(rng, size)
    if not early and rng.random() < 0.5:
        draft.now = 0.6  # everybody is in touch with everybody
    count = faults if faults is not None else rng.randrange(3, 8 if size >= TALL else 13)
    rows = [fault for fault in FAULTS if (store or fault.part is not Part.STORE) and (refuses or fault.name != "refuse")]
    draws = [fault.draw for fault in rows if fault.draw is not None]
    weights = [profile.weights[fault.name] for fault in rows if fault.draw is not None]
    for _ in range(count if any(weights) else 0):
        rng.choices(draws, weights)[0](draft)
        gaps = GAPS[: 6 if size >= TALL else 7]
        draft.now += rng.choice(gaps) if pace is None else rng.expovariate(1.0 / pace)
    drawn = Scenario(
        seed,
        size,
        fences,
        not refuses,
        mesh_limit,
        1e5 if profile.weights["skew"] else 0.0,
        rng.choice([0.0, 0.5, 0.9]) if profile.weights["drift"] else 0.0,
        early,
        rest=rng.choice([0.0, 0.02, 0.5]),
        policy=policy,
        events=tuple(sorted(draft.events, key=lambda event: event.at)),  # stable: those of one moment stay in their order
    )
    if not store:
        return drawn
    leases, files, notices = (rng.random() < chance for chance in (0.5, 0.5, 0.7))
    alone = leases and rng.random() < 0.5  # only leases tell who else is there
    return replace(drawn, leases=leases, files=files, notices=notices, alone=alone)
