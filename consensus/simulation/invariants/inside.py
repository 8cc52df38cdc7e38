"""What a machine knows and shows nowhere else, for observers alone. Nothing here changes anything."""
# ruff: noqa: SLF001 - this is the one place that looks inside

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...messages import Status
from ...protocol.state.evidence import Proof
from ...protocol.state.history import History

if TYPE_CHECKING:
    from ...protocol.machine import Machine
    from ...view import View


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a machine holds against others (ids) at one moment.

    ``discounted``: whom a quorum of its own may do without; ``waits``: whether a vote waits for a lease to run out.
    """

    proofs: Mapping[str, Proof]
    discounted: frozenset[str]
    newcomers: frozenset[str]
    silent: tuple[str, ...]
    shunned: frozenset[str]
    waits: bool


def opinion(machine: Machine) -> Opinion:
    """What it holds against others now."""
    core, acceptor = machine._core, machine._change.voter._acceptor
    waits = acceptor is not None and acceptor.deferred is not None
    book, discounted = core.evidence, machine._change.proposer.discounted
    return Opinion(dict(book.proofs), discounted, book._newcomers, tuple(book.silent), frozenset(core.shunned), waits)


def leaving(machine: Machine) -> bool:
    """Whether it wants to leave."""
    return machine._core.going


def incarnation(machine: Machine) -> int:
    """Its own."""
    return machine._core.table.incarnation


def belief(machine: Machine, member_id: str) -> tuple[Status, int] | None:
    """Status and incarnation of a peer as this machine sees it; None: no peer."""
    peer = machine._core.table.get(member_id)
    return None if peer is None else (peer.status, peer.incarnation)


def epoch_of(message: Any) -> int | None:
    """The epoch that a message of a view change is about; None where it names none.

    A view may travel whole or as the difference to its parent (``delta``).
    """
    told = getattr(message, "delta", None) or getattr(message, "view", None) or message
    epoch = getattr(told, "epoch", None)
    return None if epoch is None else int(epoch)


def cluster_of(view: View) -> str:
    """The founding that a view descends from, where views tell."""
    return str(getattr(view, "cluster", ""))


def awaits(machine: Machine, seq: int, member_id: str) -> bool:
    """Whether it waits for that member's ack of its own ping ``seq`` (not one on another's behalf, nor one given up)."""
    probe = machine._detection._prober.probes.get(seq)
    return probe is not None and probe.target.id == member_id


def shuns(machine: Machine, member_id: str) -> bool:
    """Whether it does not ack that member any more in this epoch."""
    return member_id in machine._core.shunned


def sizes(machine: Machine) -> dict[str, int]:
    """Entries in each of its tables."""
    core = machine._core
    book, prober, voter = core.evidence, machine._detection._prober, machine._change.voter
    flush, attempt = voter._flush, machine._change.proposer.attempt
    return {
        "rumours": len(core.rumours),
        "probes": len(prober.probes),
        "relays": len(prober.relays),
        "acked": len(core.acked),
        "applicants": len(core.applicants),
        "proofs": len(book.proofs),
        "silent": len(book.silent),
        "unready": len(book.unready),
        "cut_off": len(book.cut_off),
        "links": len(core.links._reports),
        "leaving": len(book.leaving),
        "checking": len(book.checking),
        "reported": len(machine._change.accusations._due),
        "shunned": len(core.shunned),
        "flush": max(len(flush._reports), len(flush._asked), len(flush._waiting)),
        "votes": 0 if attempt is None else max(len(attempt.promises), len(attempt.reports)),
        "waiting": len(machine._detection.stall._waiting),
        "history": len(core.history),
    }


def standing(machine: Machine) -> dict[str, Any]:
    """All that it has decided, promised, heard and holds against others, without clocks and counters: comparable values."""
    core = machine._core
    book, voter, proposer = core.evidence, machine._change.voter, machine._change.proposer
    acceptor, attempt, installation = voter._acceptor, proposer.attempt, machine._change.installer._installation
    return {
        "views": (core.view_id, core.installed and core.installed.view_id, core.active and core.active.view_id),
        "stopped": core.stopped,
        "leaving": core.leaving,
        "committed": core.committed_to_leave,
        "driver": core.driver,
        "proofs": sorted(book.proofs),
        "silent": sorted(book.silent),
        "unready": sorted(book.unready),
        "cut_off": sorted(book.cut_off),
        "leavers": sorted(book.leaving),
        "frozen": book.frozen_since is not None,
        "incarnation": core.table.incarnation,
        "peers": [(peer.member.id, peer.status, peer.incarnation) for peer in core.table],
        "acceptor": acceptor
        and (acceptor.promised, acceptor.accepted_ballot, acceptor.accepted, sorted(acceptor.shunned), acceptor.deferred),
        "flush": (dict(voter._flush._reports), dict(voter._flush._asked)),
        "attempt": attempt
        and (attempt.ballot, attempt.phase, attempt.proposal, sorted(attempt.promises), sorted(attempt.reports)),
        "installation": installation
        and (
            installation.view.view_id,
            sorted(installation.reports),
            installation.missing_ready(),
            installation.sent,
            installation.active,
        ),
        "applicants": sorted(core.applicants.contacts),
    }


def twin(machine: Machine) -> Machine:
    """A copy that shares nothing with it but what never changes, and without its history of changes."""
    core = machine._core
    memo: dict[int, Any] = {id(core.history): History()}
    shared: list[Any] = [core.config, core.member, core.view, core.installed, core.active, core.outbox.witness]
    shared += [peer.member for peer in core.table.asked_for]
    for each in shared:
        memo[id(each)] = each
    other = copy.deepcopy(machine, memo)
    other._core.outbox.show(None)
    return other
