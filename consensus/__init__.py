"""Masterless agreement on who is in: members detect each other's deaths and act only on lists they have agreed on.

Usable by itself: knows nothing of tensors, and imports neither torch nor ftlib.

    from consensus import Config, Gossip

    member = Gossip(Config(introducers=("127.0.0.1:7000",), initial_size=3, bind="127.0.0.1:7000"))
    member.start()
    view = member.wait_view(timeout=30)
"""

from .client import Answer, get
from .config import Config, Home, Liveness, Policy, check_secret
from .errors import (
    CodecError,
    ConfigError,
    ConsensusError,
    ExcludedError,
    FoundedApartError,
    JoinError,
    LeftError,
    OvertakenError,
    QuorumLostError,
    SecretError,
    StoppedError,
    StoreWipedError,
)
from .gossip import Gossip
from .interface import Bound, Consensus, DataPlane, Mode, Source
from .keys import MOST_KEYS, Key, KeyRing, read_secrets
from .member import Address, Member, format_address, parse_address
from .membership import Membership
from .null_plane import NullPlane
from .shared_storage import SharedStorage
from .view import Cause, Reason, View

__all__ = [
    "MOST_KEYS",
    "Address",
    "Answer",
    "Bound",
    "Cause",
    "CodecError",
    "Config",
    "ConfigError",
    "Consensus",
    "ConsensusError",
    "DataPlane",
    "ExcludedError",
    "FoundedApartError",
    "Gossip",
    "Home",
    "JoinError",
    "Key",
    "KeyRing",
    "LeftError",
    "Liveness",
    "Member",
    "Membership",
    "Mode",
    "NullPlane",
    "OvertakenError",
    "Policy",
    "QuorumLostError",
    "Reason",
    "SecretError",
    "SharedStorage",
    "Source",
    "StoppedError",
    "StoreWipedError",
    "View",
    "check_secret",
    "format_address",
    "get",
    "parse_address",
    "read_secrets",
]
