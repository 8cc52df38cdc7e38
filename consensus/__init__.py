"""Masterless agreement on who is in: members detect each other's deaths and act only on lists they have agreed on.

Usable by itself: knows nothing of tensors, and imports neither torch nor ftlib.

    from consensus import Config, Gossip

    member = Gossip(Config(introducers=("127.0.0.1:7000",), initial_size=3, bind="127.0.0.1:7000"))
    member.start()
    view = member.wait_view(timeout=30)

Each name is imported on first access: an agent's process needs half of them, and the start of a member waits for that process.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backends import Gossip, SharedStorage
    from .config import PROTOCOL_VERSION, Config, Home, Liveness, Policy, check_secret
    from .errors import (
        CodecError,
        ConfigError,
        ConsensusError,
        DialError,
        ExcludedError,
        FoundedApartError,
        JobEndedError,
        JoinError,
        LeftError,
        OvertakenError,
        QuorumLostError,
        RefusalError,
        SecretError,
        StoppedError,
        StoreWipedError,
    )
    from .interface import Bound, Consensus, DataPlane, Mode, NullPlane, Source, Stream
    from .logs import CarefulLogger
    from .member import COHORT, COHORT_SIZE, Address, Member, format_address, parse_address
    from .membership import Membership
    from .runtime.host.import_path import import_path
    from .runtime.net.fork import release_in_children
    from .runtime.net.pages import Mount
    from .runtime.net.sockets import addresses_here
    from .tools.client import Answer, get
    from .tools.interfaces import interface_name
    from .tools.orders import give_order
    from .tools.sign_in import Visit, sign_in
    from .view import Cause, Reason, View
    from .wire.keys import MOST_KEYS, Key, KeyRing, read_secrets
    from .wire.orders import OrderKind, new_order
    from .wire.slices import short_slices

__all__ = [
    "COHORT",
    "COHORT_SIZE",
    "MOST_KEYS",
    "PROTOCOL_VERSION",
    "Address",
    "Answer",
    "Bound",
    "CarefulLogger",
    "Cause",
    "CodecError",
    "Config",
    "ConfigError",
    "Consensus",
    "ConsensusError",
    "DataPlane",
    "DialError",
    "ExcludedError",
    "FoundedApartError",
    "Gossip",
    "Home",
    "JobEndedError",
    "JoinError",
    "Key",
    "KeyRing",
    "LeftError",
    "Liveness",
    "Member",
    "Membership",
    "Mode",
    "Mount",
    "NullPlane",
    "OrderKind",
    "OvertakenError",
    "Policy",
    "QuorumLostError",
    "Reason",
    "RefusalError",
    "SecretError",
    "SharedStorage",
    "Source",
    "StoppedError",
    "StoreWipedError",
    "Stream",
    "View",
    "Visit",
    "addresses_here",
    "check_secret",
    "format_address",
    "get",
    "give_order",
    "import_path",
    "interface_name",
    "new_order",
    "parse_address",
    "read_secrets",
    "release_in_children",
    "short_slices",
    "sign_in",
]

_HOMES = {
    "Address": "member",
    "Answer": "tools.client",
    "COHORT": "member",
    "COHORT_SIZE": "member",
    "Bound": "interface",
    "CarefulLogger": "logs",
    "Cause": "view",
    "CodecError": "errors",
    "Config": "config",
    "ConfigError": "errors",
    "Consensus": "interface",
    "ConsensusError": "errors",
    "DataPlane": "interface",
    "DialError": "errors",
    "ExcludedError": "errors",
    "FoundedApartError": "errors",
    "Gossip": "backends",
    "Home": "config",
    "JobEndedError": "errors",
    "JoinError": "errors",
    "Key": "wire.keys",
    "KeyRing": "wire.keys",
    "LeftError": "errors",
    "Liveness": "config",
    "MOST_KEYS": "wire.keys",
    "PROTOCOL_VERSION": "config",
    "Member": "member",
    "Mount": "runtime.net.pages",
    "Membership": "membership",
    "Mode": "interface",
    "NullPlane": "interface",
    "OrderKind": "wire.orders",
    "OvertakenError": "errors",
    "Policy": "config",
    "QuorumLostError": "errors",
    "Reason": "view",
    "RefusalError": "errors",
    "SecretError": "errors",
    "SharedStorage": "backends",
    "Source": "interface",
    "StoppedError": "errors",
    "StoreWipedError": "errors",
    "Stream": "interface",
    "View": "view",
    "Visit": "tools.sign_in",
    "addresses_here": "runtime.net.sockets",
    "check_secret": "config",
    "format_address": "member",
    "get": "tools.client",
    "give_order": "tools.orders",
    "import_path": "runtime.host.import_path",
    "interface_name": "tools.interfaces",
    "new_order": "wire.orders",
    "parse_address": "member",
    "read_secrets": "wire.keys",
    "release_in_children": "runtime.net.fork",
    "short_slices": "wire.slices",
    "sign_in": "tools.sign_in",
}
"""The module of each lazily imported name."""


def __getattr__(name: str) -> Any:
    """Import a name of ``_HOMES`` on first access."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value
