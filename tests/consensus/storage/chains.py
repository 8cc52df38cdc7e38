"""Records that follow each other, and what an executor answers who is asked about them."""

from __future__ import annotations

from collections.abc import Callable

from consensus.member import Member
from consensus.messages import ViewRecord
from consensus.storage.value_cipher import ValueCipher
from consensus.store_requests import Clean, CreateView, ReadViews, Recorded

from .records import config, executor, founding, key, successor
from .scripted_store import ScriptedStore, run

FIRST = founding()
SECOND = successor(FIRST)
RIVAL = successor(FIRST, joiner=200, driver=1)
THIRD = successor(SECOND)
FOURTH = successor(THIRD)


def ask(store: ScriptedStore, request: CreateView | ReadViews | Clean, index: int = 0) -> object:
    return run(executor(store, index).carry_out(request))


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
    return ValueCipher(config(), Member(record.driver, "127.0.0.1", 7000)).wrap(key(record.view.epoch), record)
