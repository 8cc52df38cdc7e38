"""The job as ``ftlib chaos`` sees it: who is in it and how far, and the orders to its workers, with the job's secret."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlencode

from consensus import KeyRing, get, parse_address

from ...errors import ConfigError, FTLibError
from ...launch.processes.credentials import first_accepted, rings_for
from ..status import fetch_status

_PATH = "/chaos"
_MOST_LINE = 4096


class UnansweredError(FTLibError):
    """The worker is not there, or has no time."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One member. Numbers are None where its training process does not answer."""

    member: str
    address: str
    step: int | None = None
    paused: float = 0.0
    """Seconds in view changes so far, all together."""
    supervised: bool = False
    """Whether a launcher starts it again when it ends."""
    replica: str = ""
    """The name of the replica of several processes that it is one of; empty: it is a replica by itself."""
    shards: int = 1
    """Of how many processes its replica is."""
    level: bool = False
    """Whether it has come in with the others' state, and so could go on without them."""


@dataclass(frozen=True, slots=True)
class Sight:
    """The job at one moment, by one member's view."""

    members: Mapping[str, Seen] = field(default_factory=dict)
    """By name."""
    epoch: int = 0
    changing: bool = False

    def replica_of(self, name: str) -> frozenset[str]:
        """The names of all processes of the replica that the member ``name`` is one of: they are lost with it."""
        replica = self.members[name].replica
        if not replica:
            return frozenset({name})
        return frozenset(each for each, seen in self.members.items() if seen.replica == replica)

    def level(self) -> frozenset[str]:
        """The names of those that have the state: a joiner that still gets it could not go on without the others."""
        return frozenset(name for name, seen in self.members.items() if seen.level)

    def whole(self) -> list[frozenset[str]]:
        """The replicas that are whole, each by the names of its processes: what the job may lose one of, if it has two."""
        found = dict.fromkeys(self.replica_of(name) for name in self.members)
        return [names for names in found if all(self.members[name].shards == len(names) for name in names)]


class Job:
    """A running job, found at one member's address; then at those of all members that were ever seen."""

    def __init__(self, address: str, timeout: float) -> None:
        """``timeout``: seconds to wait for each answer."""
        self._addresses = [address]
        self._timeout = timeout

    def look(self) -> Sight:
        """Ask until a member of a view answers. FTLibError if none does."""
        first = ""  # a text: the error would keep its connection in a circle with this frame
        for address in list(self._addresses):
            try:
                status = fetch_status(address, self._timeout)
            except ConfigError:
                raise
            except FTLibError as error:
                first = first or str(error)
                continue
            members = status.get("members") or ()
            if status.get("stopped") or status.get("member") not in {member["id"] for member in members}:
                first = first or f"{address} is in no view now: give another member's address"
                continue
            return self._sight(status)
        raise FTLibError(first)

    def offers(self, seen: Seen) -> tuple[str, ...]:
        """The kinds of faults that this worker takes. FTLibError, with the remedy, if it takes none."""
        return tuple(self._order(seen, {}).get("kinds") or ())

    def inject(self, seen: Seen, kind: str, seconds: float) -> None:
        """Have it happen; returns once the worker has been told. UnansweredError if it did not answer, else FTLibError."""
        self._order(seen, {"fault": kind, "seconds": f"{seconds:g}"})

    def _sight(self, status: Mapping[str, Any]) -> Sight:
        members = [dict(member) for member in status["members"]]
        with ThreadPoolExecutor(16) as pool:
            seen = list(pool.map(self._seen, members))
        known = [each.address for each in seen]
        self._addresses = known + [address for address in self._addresses if address not in known][:64]
        names = [_name_of(member) for member in members]
        return Sight(dict(zip(names, seen, strict=True)), int(status["active_epoch"]), bool(status["changing"]))

    def _seen(self, member: Mapping[str, Any]) -> Seen:
        own, address = str(member["id"]), str(member["address"])
        supervised, cohort = bool((member.get("meta") or {}).get("supervisor")), member.get("cohort") or {}
        bare = Seen(own, address, None, 0.0, supervised, str(cohort.get("name", "")), int(cohort.get("size", 1)))
        try:
            status = fetch_status(address, self._timeout)
        except FTLibError:
            return bare
        facts = status.get("ftlib") or {}
        step = None if facts.get("stale") or status.get("member") != own else facts.get("step")
        level = status.get("member") == own and bool(facts.get("level"))
        return replace(bare, step=step, paused=float((facts.get("pauses") or {}).get("sum", 0.0)), level=level)

    def _order(self, seen: Seen, query: Mapping[str, str]) -> dict[str, Any]:
        return first_accepted(lambda ring: self._ask(seen, query, ring), rings_for("faults"))

    def _ask(self, seen: Seen, query: Mapping[str, str], ring: KeyRing) -> dict[str, Any]:
        try:
            where, limit = parse_address(seen.address), self._timeout
            with get(where, f"{_PATH}?{urlencode(query)}", ring, timeout=limit, within=limit) as answer:
                line = b""
                while not line.endswith(b"\n") and len(line) < _MOST_LINE and (byte := answer.read(1)):
                    line += byte  # no more than the line: what comes after it, a killed worker does not send
        except (OSError, EOFError, http.client.HTTPException) as error:
            raise UnansweredError(
                f"{seen.address} did not answer ({error}): nothing was injected there, as far as is known"
            ) from None
        if answer.status == http.client.NOT_FOUND:
            raise FTLibError(
                f"the worker at {seen.address} takes no faults: start all with chaos = true (FTLIB_CHAOS=1) and a secret"
            )
        text = line.decode(errors="replace").strip()
        if answer.status != http.client.OK:
            raise FTLibError(f"the worker at {seen.address} refuses: {text}")
        try:
            return dict(json.loads(text))
        except ValueError:
            raise FTLibError(f"{seen.address} answers, but not as a worker of this version") from None


def _name_of(member: Mapping[str, Any]) -> str:
    """``worker-2``; the address of a member without a name."""
    return str((member.get("meta") or {}).get("name") or member["address"]).replace(" ", "-")
