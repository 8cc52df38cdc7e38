"""A channel's queues, against a model that looks at the order of puts: nothing is lost, doubled or overtaken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ftlib.collective.queues import Code, QueueAnswer, Queues

CLIENTS = st.sampled_from("abc")
KEYS = st.sampled_from(["k", "l"])


def codes(answers: list[QueueAnswer]) -> list[tuple[Any, Code, list[Any]]]:
    return [(answer.ask, answer.code, [item.value for item in answer.items]) for answer in answers]


def test_a_getter_that_dies_gives_back_in_order() -> None:
    queues = Queues(0)
    for number in range(4):
        queues.put(("p", number), "k", 1, number, wait=True)
    assert codes(queues.get(("a", 1), "k", 2, wait=True)) == [(("a", 1), Code.ITEMS, [0, 1])]
    assert codes(queues.get(("b", 1), "k", None, wait=True)) == [(("b", 1), Code.ITEMS, [2])]
    queues.acknowledge(("b", 1))
    assert queues.lost("a") == queues.lost("b") == []
    assert [item.value for item in queues.items("k")] == [0, 1, 3]


def test_who_waits_for_a_batch_keeps_nobody_from_putting() -> None:
    """Else a queue of at most two could never give four."""
    queues, done = Queues(2), []
    assert queues.get(("a", 1), "k", 4, wait=True) == []
    for number in range(4):
        done += codes(queues.put(("p", number), "k", 1, number, wait=True))
    assert done[-1] == (("a", 1), Code.ITEMS, [0, 1, 2, 3]) and len(done) == 5
    assert codes(queues.get(("a", 2), "k", 4, wait=True)) == []
    queues.put(("p", 5), "k", 1, 5, wait=True)
    assert codes(queues.cancel(("a", 2))) == [(("a", 2), Code.EMPTY, [])]
    assert queues.size("k") == 1, "what it had so far went back"
    assert queues.cancel(("a", 2)) == []


def test_full_and_empty() -> None:
    queues = Queues(1)
    assert codes(queues.get(("a", 1), "k", None, wait=False)) == [(("a", 1), Code.EMPTY, [])]
    assert codes(queues.put(("p", 1), "k", 0, 1, wait=False)) == [(("p", 1), Code.DONE, [])]
    assert codes(queues.put(("p", 2), "k", 0, 2, wait=False)) == [(("p", 2), Code.FULL, [])]
    assert queues.put(("p", 3), "k", 0, 3, wait=True) == []
    assert codes(queues.put(("p", 4), "l", 0, 4, wait=True)) == [(("p", 4), Code.DONE, [])], "each key has its own bound"
    assert codes(queues.get(("a", 2), "k", None, wait=True)) == [(("a", 2), Code.ITEMS, [1]), (("p", 3), Code.DONE, [])]


class Model(RuleBasedStateMachine):
    """Each item is at one place: waiting, there, given, or delivered."""

    most = 2

    def __init__(self) -> None:
        super().__init__()
        self.queues = Queues(self.most)
        self.count = 0
        self.put_by: dict[tuple[str, int], tuple[str, int]] = {}
        """Puts without an answer, with their key and item."""
        self.gets: dict[tuple[str, int], str] = {}
        self.inside: dict[str, list[int]] = {"k": [], "l": []}
        """Items that were taken in and not delivered, by key."""
        self.given: dict[tuple[str, int], tuple[str, list[int]]] = {}
        self.delivered: dict[str, list[int]] = {"k": [], "l": []}

    def take(self, answers: list[QueueAnswer]) -> None:
        for answer in answers:
            match answer.code:
                case Code.DONE:
                    key, item = self.put_by.pop(answer.ask)  # type: ignore[arg-type]
                    self.inside[key].append(item)
                case Code.FULL:
                    del self.put_by[answer.ask]  # type: ignore[arg-type]
                case Code.EMPTY:
                    del self.gets[answer.ask]  # type: ignore[arg-type]
                case Code.ITEMS:
                    key = self.gets.pop(answer.ask)  # type: ignore[arg-type]
                    items = [item.value for item in answer.items]
                    assert set(items) <= set(self.inside[key])
                    for item in items:
                        self.inside[key].remove(item)
                    self.given[answer.ask] = key, items  # type: ignore[index]

    def ask(self, who: str) -> tuple[str, int]:
        self.count += 1
        return who, self.count

    @rule(who=CLIENTS, key=KEYS, wait=st.booleans())
    def put(self, who: str, key: str, wait: bool) -> None:
        ask = self.ask(who)
        self.put_by[ask] = key, ask[1]
        self.take(self.queues.put(ask, key, 1, ask[1], wait=wait))
        assert wait or ask not in self.put_by

    @rule(who=CLIENTS, key=KEYS, wait=st.booleans(), weight=st.sampled_from([None, 1, 3]))
    def get(self, who: str, key: str, wait: bool, weight: int | None) -> None:
        ask = self.ask(who)
        self.gets[ask] = key
        self.take(self.queues.get(ask, key, weight, wait=wait))
        assert wait or ask not in self.gets

    @rule(pick=st.integers(0, 9))
    def cancel(self, pick: int) -> None:
        waiting = [*self.put_by, *self.gets]
        if waiting:
            ask = waiting[pick % len(waiting)]
            self.take(self.queues.cancel(ask))
            assert ask not in self.put_by and ask not in self.gets

    @rule(pick=st.integers(0, 9), back=st.booleans())
    def end(self, pick: int, back: bool) -> None:
        if self.given:
            ask = list(self.given)[pick % len(self.given)]
            key, items = self.given.pop(ask)
            if back:
                self.inside[key] = sorted(items + self.inside[key])
                self.take(self.queues.give_back(ask))
            else:
                self.queues.acknowledge(ask)
                self.delivered[key] += items

    @rule(who=CLIENTS)
    def lost(self, who: str) -> None:
        for ask in [ask for ask in self.given if ask[0] == who]:
            key, items = self.given.pop(ask)
            self.inside[key] = sorted(items + self.inside[key])
        self.put_by = {ask: entry for ask, entry in self.put_by.items() if ask[0] != who}
        self.gets = {ask: key for ask, key in self.gets.items() if ask[0] != who}
        self.take(self.queues.lost(who))

    @invariant()
    def nothing_waits_for_what_is_there(self) -> None:
        for key in "kl":
            seen = [item.value for item in self.queues.items(key)]
            assert seen == sorted(seen) and set(seen) <= set(self.inside[key])
            if not any(waits == key for waits in self.gets.values()):
                assert seen == sorted(self.inside[key]), "all that is inside can be had"
                assert len(seen) >= self.most or not any(entry[0] == key for entry in self.put_by.values())
            everywhere = (
                self.inside[key] + self.delivered[key] + [i for k, items in self.given.values() if k == key for i in items]
            )
            assert len(set(everywhere)) == len(everywhere)


def _machine(examples: int) -> Callable[..., Any]:
    case = Model.TestCase
    case.settings = settings(max_examples=examples, stateful_step_count=40)
    return case


TestModel = _machine(60)
