"""The thirteen invariants of membership, checked after every simulated event.

``Jury`` is the observer that every world has; ``STANDARD`` lists whom it asks. Each invariant has a file of its own. What
several of them need to know is kept once: ``record`` (views, ballots, votes, contacts, deaths), ``ledger`` (what a store has
decided), ``ground`` (who was well, and
since when) and ``story`` (what happened lately, for the text of a violation). ``inside`` reads what a machine shows nowhere
else.
"""

from .activation import Activation
from .ballots import Ballots
from .bounds import Bounds
from .checkpoints import Checkpoints
from .choice import Choice
from .exclusion import Exclusion
from .flush import Flush
from .ground import Ground
from .invariant import Invariant
from .jury import Jury
from .laggards import Laggards
from .ledger import Ledger
from .lifetimes import Lifetimes
from .liveness import Liveness
from .record import Record
from .records import Records
from .replays import Replays
from .standard import STANDARD
from .story import Story
from .succession import Succession
from .trust import Trust
from .uniqueness import Uniqueness
from .violation import Violation
from .witness import Witness

__all__ = [
    "STANDARD",
    "Activation",
    "Ballots",
    "Bounds",
    "Checkpoints",
    "Choice",
    "Exclusion",
    "Flush",
    "Ground",
    "Invariant",
    "Jury",
    "Laggards",
    "Ledger",
    "Lifetimes",
    "Liveness",
    "Record",
    "Records",
    "Replays",
    "Story",
    "Succession",
    "Trust",
    "Uniqueness",
    "Violation",
    "Witness",
]
