"""Live recovery: a worker that joins gets the state beside the training, without stopping the others.

The joiner *follows*: inside its first call it takes part in the others' calls with weight 0 (``ftlib.core.calls.follow``).
Meanwhile it fetches the state on entry to one of these calls, cut in shards, from several donors, and replays the averages
since then.

``layout`` is what both sides agree on: what travels, how it is cut, requests, records of the replication log. ``donor`` keeps
copy-on-write snapshots and serves them; ``joiner`` fetches, replays and verifies. The two import nothing of each other.
``warm_standby`` keeps a spare level with the members, and ``catchup`` makes all of it the ``Recovery`` of a lifetime.
``whole_state`` is the other way to the state: a member loads all of it from one donor while the others wait.
"""

from .catchup import Catchup
from .donor.donor import Donor
from .joiner.group_transport import GroupTransport
from .joiner.http_transport import HTTPTransport
from .joiner.limits import RecoveryLimits
from .warm_standby import WarmStandby
from .whole_state import Transfer

__all__ = ["Catchup", "Donor", "GroupTransport", "HTTPTransport", "RecoveryLimits", "Transfer", "WarmStandby"]
