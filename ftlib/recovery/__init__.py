"""Live recovery: a joiner gets the state while the others train, without stopping them.

The joiner *follows*: inside its first call it takes part in the others' calls with weight 0 (``ftlib.core.calls.follow``).
Meanwhile it fetches the state on entry to one of these calls, split into shards, from several donors, and replays the averages
since then.

``layout`` is what both sides agree on: manifest, shards, requests, records of the replication log. ``donor`` keeps
copy-on-write snapshots and serves them; ``joiner`` fetches, replays and verifies. Neither imports the other. ``warm_standby``
keeps a spare level with the members, and ``catchup`` combines all of it into the ``Recovery`` of a lifetime. ``whole_state`` is
the other way to get the state: a member loads all of it from one donor while the others wait; ``border`` is that between calls.
"""

from .border import Border
from .catchup import Catchup
from .donor.donor import Donor
from .joiner.group_transport import GroupTransport
from .joiner.http_transport import FetchError, HTTPTransport, request
from .joiner.limits import RecoveryLimits
from .warm_standby import WarmStandby
from .whole_state import Transfer

__all__ = [
    "Border",
    "Catchup",
    "Donor",
    "FetchError",
    "GroupTransport",
    "HTTPTransport",
    "RecoveryLimits",
    "Transfer",
    "WarmStandby",
    "request",
]
