"""This host's part in a meeting of several (``--meet``): at which address its workers and its endpoint listen."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Sequence

from consensus import ConfigError as ConsensusConfigError
from consensus import addresses_here, format_address, parse_address

from ...errors import ConfigError
from ..processes.sockets import ControlSockets, bind_control, listen
from .environment import Start
from .plan import Meeting


class MeetingPlace:
    """This host's part in a ``Meeting``: its address, the endpoint's socket, and how each worker starts."""

    def __init__(self, meeting: Meeting, workers: int) -> None:
        """Looks names up. Raises ConfigError if others could not reach the address that was found."""
        self._meeting = meeting
        try:
            self._places = addresses_here(meeting.introducers)
        except ConsensusConfigError as error:
            raise ConfigError(f"--meet: {error}") from None
        self.host = self._places[0][0]
        """This host's address, numeric: workers and the endpoint listen there."""
        self.port = 0
        """Where the first worker of this host is met, once it has been started."""
        names = [parse_address(each)[0] for each in meeting.introducers]
        far = [name for name in names if name != "localhost" and not _loopback(name)]
        if _loopback(self.host) and far and meeting.size > workers:
            raise ConfigError(
                f"--meet: here {far[0]} is {self.host}, which other hosts cannot reach: correct /etc/hosts, or give addresses"
            )

    @property
    def name(self) -> str:
        """This host's, for people."""
        return socket.gethostname()

    def listen(self) -> socket.socket:
        """The socket of the endpoint, at which peers on other hosts have a silent worker killed."""
        return listen(host=self.host)

    def start(self, index: int, members: Sequence[str]) -> tuple[Start, ControlSockets | None]:
        """How worker ``index`` starts now, and the sockets bound for it. ``members``: addresses of members on this host.

        Raises ConfigError if the first worker's port is not free when it starts for the first time. Later OSError, if none can
        be bound: this host has lost its address, or has no descriptor left.
        """
        introducers = list(dict.fromkeys([*members, *self._meeting.introducers]))
        size = self._meeting.size
        if index:
            return Start(index, introducers, size, host=self.host, of=self.name), None
        sockets = self._bind()
        start = Start(index, introducers, size, sockets.port, sockets.fds, host=self.host, of=self.name)
        return start, sockets

    def _bind(self) -> ControlSockets:
        """The first free place of this host; once worker 0 had one, that, or any port where somebody else has taken it."""
        if self.port:
            try:
                return bind_control(self.port, self.host)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:  # no other port can be bound either, or this one again before long
                    raise
                return bind_control(0, self.host)
        for host, port in self._places:
            try:
                sockets = bind_control(port, host)
            except OSError:
                continue
            self.host, self.port = host, sockets.port
            return sockets
        places = ", ".join(map(format_address, self._places))
        raise ConfigError(f"--meet: {places} is taken: one ftlib run a host and job, or another port on all hosts")


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
