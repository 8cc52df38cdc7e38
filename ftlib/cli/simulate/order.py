"""What to simulate: the command line as values, and back again, so that every run can print how to repeat it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace

from consensus import Config, Policy
from consensus.simulation.script.fault_profile import NAMES, FaultProfile
from consensus.simulation.script.faults import FAULTS as ROWS
from consensus.simulation.script.faults import Part
from consensus.simulation.script.history import draw
from consensus.simulation.script.scenario import Scenario

from ...errors import ConfigError

GROUPS: dict[str, tuple[str, ...]] = {
    "partition": ("one_way", "isolate", "halves", "three_way", "bridge"),
    "churn": ("join", "join_and_crash", "leave", "restart"),
    "clock": ("skew", "drift", "jump"),
}
"""Names for several faults at once."""

FAULTS = tuple(name for name in NAMES if name != "heal")
"""Every fault by name; GROUPS stand for some of them."""

_NETWORK = tuple(fault.name for fault in ROWS if fault.part is Part.NETWORK and fault.name != "heal")
_MOST_SEEDS = 1_000_000


@dataclass(frozen=True)
class Order:
    """One run. ``faults``: as written in the command line; ``seconds``: of the phase with faults."""

    members: int
    seed: int
    faults: str
    seconds: float
    policy: str

    def scenario(self) -> Scenario:
        """Return the history for these values, always the same one. Raises ConfigError if ``faults`` makes no sense."""
        policy = "" if self.policy == Policy.MAJORITY.value else self.policy
        told = draw(self.seed, profile_of(self.faults), self.members, seconds=self.seconds, policy=policy)
        return replace(told, mesh_limit=Config().mesh_limit, early=False)

    def config(self) -> Config:
        """Return the protocol's settings, without those of a store, which are the scenario's."""
        policy = Policy(self.policy)
        return Config() if policy is Policy.STORAGE else replace(Config(), policy=policy)

    @property
    def command(self) -> str:
        """The command line that repeats this run."""
        words = ["ftlib", "simulate", "--members", str(self.members), "--seed", str(self.seed), "--faults", self.faults]
        words += ["--seconds", f"{self.seconds:g}"]
        if self.policy != Config().policy.value:
            words += ["--policy", self.policy]
        return shlex.join(words)


def profile_of(text: str) -> FaultProfile:
    """Read ``--faults``: names, groups, ``name=weight``, ``-name``. With faults of the network, it also heals now and then."""
    words = []
    for word in (part.strip() for part in text.split(",")):
        name, _, weight = word.removeprefix("-").partition("=")
        sign = "-" if word.startswith("-") else ""
        words += [f"{sign}{each}{'=' + weight if weight else ''}" for each in GROUPS.get(name, (name,))]
    try:
        profile = FaultProfile.parse(",".join(words))
    except ValueError as error:
        problem, _, _ = str(error).partition(": choose")
        hint = f": choose from all, none, {', '.join((*GROUPS, *FAULTS))}" if problem != str(error) else ""
        raise ConfigError(f"--faults: {problem}{hint}") from None
    weights = dict(profile.weights)
    if "heal" not in (word.lstrip("-").partition("=")[0] for word in words) and any(weights[name] for name in _NETWORK):
        weights["heal"] = FaultProfile().weights["heal"]
    return FaultProfile.of(weights)


def seeds_of(text: str, first: int) -> range:
    """Read ``--seeds``: FROM-TO (both run), or how many from ``first`` on. Raises ConfigError if it is neither."""
    found = re.fullmatch(r"(\d{1,12})(?:-(\d{1,12}))?", text.strip())
    if found is None:
        raise ConfigError(f"--seeds {text!r}: write FROM-TO, or how many")
    low, high = (int(found[1]), int(found[2])) if found[2] else (first, first + int(found[1]) - 1)
    if not 0 < high - low + 1 <= _MOST_SEEDS:
        raise ConfigError(f"--seeds {text!r} are {max(0, high - low + 1)} runs: from 1 to {_MOST_SEEDS} are possible")
    return range(low, high + 1)
