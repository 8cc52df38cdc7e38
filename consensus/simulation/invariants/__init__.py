"""The twelve invariants of membership, checked after every simulated event.

``judged(world)`` lets ``Checkers`` watch a world; ``STANDARD`` lists the invariants that they ask. What several of them need to
know is kept once, in ``facts``: views, ballots, votes, contacts, deaths (``Record``), what a store has decided (``StoreLog``),
and which process was well, since when (``Health``). ``EventLog`` keeps what happened lately, for the text of a violation.
``inside`` reads what a machine shows nowhere else.
"""

from .bounds import Bounds
from .checkers import STANDARD, Checkers, judged
from .exclusion import Exclusion
from .facts import Health, Record, StoreLog
from .installation import Activation, Flush
from .invariant import EventLog, Facts, Invariant, Violation
from .lifetimes import Lifetimes, Trust
from .progress import Laggards, Liveness
from .records import Records
from .replays import Replays
from .views import Succession, Uniqueness
from .voting import Ballots, Choice

__all__ = [
    "STANDARD",
    "Activation",
    "Ballots",
    "Bounds",
    "Checkers",
    "Choice",
    "EventLog",
    "Exclusion",
    "Facts",
    "Flush",
    "Health",
    "Invariant",
    "Laggards",
    "Lifetimes",
    "Liveness",
    "Record",
    "Records",
    "Replays",
    "StoreLog",
    "Succession",
    "Trust",
    "Uniqueness",
    "Violation",
    "judged",
]
