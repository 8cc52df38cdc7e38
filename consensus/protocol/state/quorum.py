"""The members that may decide, as pure functions. The quorum rules of policy ``majority`` are (a) and (b).

(a) More than half of the whole old view, dead members counted, or exactly half of it with its most senior member.
(b) Every member that is not discounted as certainly dead. So processes on one host shrink safely down to one.

Merely dropping the dead from the denominator forks; ``tests/transcripts`` keeps the histories that show it.

Under ``any`` all remaining members decide: all except those that the value removes, or against which the proposer has evidence.
That may fork: the other side may do the same without this one.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from ...view import View


def is_quorum(view: View, responders: AbstractSet[str], discounted: AbstractSet[str]) -> bool:
    """Whether ``responders`` may decide about the successor of ``view``."""
    if 2 * len(responders) < len(view) > len(responders) + len(discounted):
        return False  # fast: this runs after every answer, of which there may be a thousand
    present = sum(1 for member in view.members if member.id in responders)
    return is_most(view, present, senior=view.members[0].id in responders) or is_everybody(view, responders, discounted)


def is_most(view: View, present: int, *, senior: bool) -> bool:
    """Rule (a) for ``present`` members of ``view``; ``senior``: whether its most senior member is among them."""
    return 2 * present > len(view) or (2 * present == len(view) and senior)


def is_everybody(view: View, responders: AbstractSet[str], excused: AbstractSet[str]) -> bool:
    """Whether all members of ``view`` that are not ``excused`` have answered."""
    return all(member.id in responders or member.id in excused for member in view.members)


def missing(view: View, responders: AbstractSet[str], discounted: AbstractSet[str]) -> tuple[str, ...]:
    """Ids of the members whose answers are missing, in seniority order."""
    return tuple(m.id for m in view.members if m.id not in responders and m.id not in discounted)
