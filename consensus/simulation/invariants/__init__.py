"""The thirteen invariants of membership, checked after every simulated event.

``Jury`` is the observer that every world has; ``STANDARD`` lists whom it asks. Each invariant has a file of its own. What
several of them need to know is kept once: ``record`` (views, ballots, votes, contacts, deaths) and ``story`` (what happened
lately, for the text of a violation).
"""

from .activation import Activation
from .ballots import Ballots
from .flush import Flush
from .invariant import Invariant
from .jury import Jury
from .record import Record
from .standard import STANDARD
from .story import Story
from .succession import Succession
from .uniqueness import Uniqueness
from .violation import Violation
from .witness import Witness

__all__ = [
    "STANDARD",
    "Activation",
    "Ballots",
    "Flush",
    "Invariant",
    "Jury",
    "Record",
    "Story",
    "Succession",
    "Uniqueness",
    "Violation",
    "Witness",
]
