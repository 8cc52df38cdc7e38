"""One report an epoch, for every ballot alike; the data plane is asked once."""

from __future__ import annotations

from consensus.border import Flushed, Freeze
from consensus.member import Address
from consensus.messages import Accepted, Chosen, Message
from consensus.protocol.agreement.flush import FlushReports
from consensus.protocol.state.effects import Outbox

from .people import machine_in, member, view_of

AT: Address = ("10.0.0.1", 7)


def answer(ballot: int) -> object:
    def make(report: bytes) -> Message:
        return Accepted(2, "p", (ballot, "a"), report)

    return make


def asked(ballot: int, report: bytes) -> Accepted:
    return Accepted(2, "p", (ballot, "a"), report)


def ask(flush: FlushReports, ballot: int, *, after: int | None = None, epoch: int = 2, sender: str = "a") -> Message | None:
    return flush.request(epoch, after, sender, AT, answer(ballot))  # type: ignore[arg-type]


def test_asks_once_and_answers_everybody_who_waited() -> None:
    outbox = Outbox(member("b"))
    flush = FlushReports(outbox)
    assert ask(flush, 0) is None
    assert ask(flush, 1, sender="c") is None
    assert outbox.drain() == [Freeze(2, None)]
    assert flush.store(2, b"R") == [("a", AT, asked(0, b"R")), ("c", AT, asked(1, b"R"))]
    assert flush.store(2, b"R") == []


def test_all_ballots_get_the_same_stored_report() -> None:
    flush = FlushReports(Outbox(member("b")))
    ask(flush, 0)
    flush.store(2, b"first")
    flush.store(2, b"second")
    assert ask(flush, 3) == asked(3, b"first")
    assert flush.get(2) == b"first"


def test_the_latest_request_of_a_sender_is_answered() -> None:
    flush = FlushReports(Outbox(member("b")))
    ask(flush, 1)
    ask(flush, 2)
    assert flush.store(2, b"R") == [("a", AT, asked(2, b"R"))]


def test_asked_again_only_where_it_need_not_wait_for_a_call_any_more() -> None:
    outbox = Outbox(member("b"))
    flush = FlushReports(outbox)
    ask(flush, 0, after=9)
    ask(flush, 1, after=9)
    ask(flush, 2)
    ask(flush, 3, after=9)
    assert outbox.drain() == [Freeze(2, 9), Freeze(2, None)]


def test_the_own_epochs_report_is_kept_until_it_is_installed() -> None:
    flush = FlushReports(Outbox(member("b")))
    flush.store(2, b"two")
    flush.store(3, b"three")
    flush.forget(3)
    assert flush.get(2) is None
    assert flush.get(3) == b"three"


def test_a_member_keeps_its_report_until_the_next_view_is_chosen() -> None:
    """INSTALL asks for the very same one; older ones would only take memory, view by view."""
    machine, view = machine_in("abcd", "b"), view_of("abcd")
    cluster, voter = view.cluster, machine._change.voter
    for epoch, names in enumerate(("abc", "ab"), 2):
        view = view_of(names, epoch, view.view_id, cluster)
        machine.handle(Flushed(epoch, b"%d" % epoch), 100.0 + epoch)
        machine.receive("a", member("a").address, Chosen(view, "a"), 100.1 + epoch)
        assert [voter.report(each) for each in (epoch - 1, epoch)] == [None, b"%d" % epoch]
