"""Records that follow each other, and what a clerk answers who is asked about them."""

from __future__ import annotations

from collections.abc import Callable

from consensus.errands import Clean, CreateView, ReadViews, Recorded
from consensus.member import Member
from consensus.messages import ViewRecord
from consensus.storage.vault import Vault

from .records import clerk, config, founding, key, successor
from .scripted_store import ScriptedStore, run

FIRST = founding()
SECOND = successor(FIRST)
RIVAL = successor(FIRST, joiner=200, driver=1)
THIRD = successor(SECOND)
FOURTH = successor(THIRD)


def ask(store: ScriptedStore, errand: CreateView | ReadViews | Clean, index: int = 0) -> object:
    return run(clerk(store, index).carry_out(errand))


def chain(store: ScriptedStore, *records: ViewRecord) -> None:
    for record in records:
        assert ask(store, CreateView(record)) == Recorded(record)
    store.log.clear()


def raises(error: Exception) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def stored(record: ViewRecord) -> bytes:
    """As whoever makes it writes it."""
    return Vault(config(), Member(record.driver, "127.0.0.1", 7000)).wrap(key(record.view.epoch), record)
