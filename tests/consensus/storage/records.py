"""Members, records and executors for the tests of what stands in a store."""

from __future__ import annotations

from consensus.config import Config, Liveness, Policy
from consensus.member import Member
from consensus.messages import Lease, ViewRecord
from consensus.storage.store import Store
from consensus.storage.store_executor import StoreExecutor
from consensus.view import Proposal, View
from consensus.wire.keys import KeyRing


def member(index: int) -> Member:
    return Member(f"{index:016x}", "127.0.0.1", 7000 + index)


def config(job: str = "job") -> Config:
    return Config(job=job, policy=Policy.STORAGE, liveness=Liveness.LEASES, storage="file:///unused")


def executor(store: Store, index: int = 0, job: str = "job", *secrets: str) -> StoreExecutor:
    """That of member ``index``."""
    return StoreExecutor(store, config(job), member(index), KeyRing(secrets) if secrets else None)


def founding(size: int = 3, epoch: int = 1, first: int = 0) -> ViewRecord:
    """By members ``first`` and following; the first of them creates it."""
    members = tuple(member(first + index) for index in range(size))
    return ViewRecord(View(epoch, "", members), members[0].id)


def successor(record: ViewRecord, *, joiner: int = 100, driver: int = 0) -> ViewRecord:
    """A view after it: with one more member, whom ``joiner`` tells from others'. Made by member ``driver``."""
    view = record.view
    proposal = Proposal(view.view_id, view.epoch + 1, joined=(member(joiner + view.epoch),))
    return ViewRecord(proposal.apply(view), member(driver).id, proposal, None, (view.view_id, *record.trail))


def lease(index: int, counter: int = 1) -> Lease:
    return Lease(member(index), counter)


def key(epoch: int) -> str:
    return f"views/{epoch:012d}"
