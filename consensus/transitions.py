"""A state machine as a table of all its transitions; any other transition is an error at the moment it happens.

A table stands beside the enum of its states. The code changes such a state only through ``after``; the diagrams in ``imgs``
are drawn from the tables. An event's value says in a few words what happens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Generic, TypeVar

State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)


class IllegalTransitionError(AssertionError):
    """An event happened in a state for which the table has no row: a defect of this program, never of a peer."""


class Table(Generic[State, Event]):
    """(state, event) -> state. Raises ValueError if a state cannot be reached or an event happens nowhere."""

    def __init__(self, name: str, start: State, rows: Mapping[State, Mapping[Event, State]]) -> None:
        """``rows``: for each state that is not final, the events that may happen in it, each with the next state."""
        self.name = name
        self.start = start
        self._rows = {(state, event): target for state, row in rows.items() for event, target in row.items()}
        self._refuse_holes()

    def __iter__(self) -> Iterator[tuple[State, Event, State]]:
        """The rows: state, event, state afterwards."""
        return ((state, event, target) for (state, event), target in self._rows.items())

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<Table {self.name}: {len(self)} transitions from {self.start.name}>"

    def after(self, state: State, event: Event) -> State:
        """The state that ``event`` leads to. Raises IllegalTransitionError if the table has no such row."""
        try:
            return self._rows[state, event]
        except KeyError:
            raise IllegalTransitionError(f"{self.name}: {event.name} cannot happen in state {state.name}") from None

    @property
    def states(self) -> tuple[State, ...]:
        """All, in the order of their enum."""
        return tuple(type(self.start))

    @property
    def final(self) -> frozenset[State]:
        """The states in which nothing happens any more."""
        return frozenset(self.states) - {state for state, _ in self._rows}

    def _refuse_holes(self) -> None:
        reached, fresh = {self.start}, [self.start]
        while fresh:
            state = fresh.pop()
            targets = {target for (source, _), target in self._rows.items() if source is state} - reached
            reached |= targets
            fresh += targets
        lost = [state.name for state in self.states if state not in reached]
        if lost:
            raise ValueError(f"{self.name}: no way leads to {', '.join(lost)}")
        events = {event for _, event in self._rows}
        unused = [event.name for kind in {type(event) for event in events} for event in kind if event not in events]
        if unused:
            raise ValueError(f"{self.name}: {', '.join(unused)} happens nowhere")
