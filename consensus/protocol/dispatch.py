"""Hands each message to the part of a machine that handles it: one case a type, the only place that knows all types."""

from __future__ import annotations

from ..member import Address
from ..messages import (
    Accept,
    Accepted,
    Ack,
    Activate,
    Beliefs,
    Chosen,
    Digest,
    Evidence,
    FlushReply,
    FlushRequest,
    Forecast,
    Gossip,
    Install,
    Introduction,
    JoinReply,
    JoinRequest,
    LeaveRequest,
    Message,
    Nack,
    Overtaken,
    Ping,
    PingRequest,
    Prepare,
    Promise,
    Promised,
    Pull,
    Ready,
    Refused,
    Stranger,
)
from .admission.admission import Admission
from .agreement.contact import Contact
from .agreement.view_change import ViewChange
from .detection.detection import Detection
from .detection.reconciliation import Reconciliation
from .state.core import Core


class Dispatch:
    """Hands messages to the parts of one machine."""

    def __init__(
        self,
        core: Core,
        detection: Detection,
        reconciliation: Reconciliation,
        change: ViewChange,
        contact: Contact,
        admission: Admission,
    ) -> None:
        self._core = core
        self._detection = detection
        self._reconciliation = reconciliation
        self._change = change
        self._contact = contact
        self._admission = admission

    def take(  # noqa: C901, PLR0912, PLR0915 - one case a message type: a table, read as one
        self, sender: str, address: Address, message: Message, now: float
    ) -> None:
        """Handle a message from ``sender`` (which may be this member itself), which receives its answers at ``address``."""
        detection, change, admission, contact = self._detection, self._change, self._admission, self._contact
        match message:
            case Ping():
                detection.on_ping(sender, address, message, now)
                contact.compare(sender, address, message.epoch, message.view_id, now)
            case Ack():
                detection.on_ack(sender, message, now)
                if self._core.applicants.get(sender) is not None:
                    change.proposer.consider(now)  # it can be admitted now
                if message.target == sender:
                    contact.compare(sender, address, message.epoch, message.view_id, now)
            case PingRequest():
                detection.on_ping_request(address, message, now)
                contact.met(sender, address, now)
            case Nack():
                detection.on_nack(message)
            case Stranger():
                detection.on_stranger(address, message, now)
                contact.gone(message.target)
            case Gossip():
                detection.on_gossip(sender, address, message, now)
                contact.met(sender, address, now)
            case Digest():
                contact.compare(sender, address, message.epoch, message.view_id, now)
                self._reconciliation.on_digest(address, message)
            case Beliefs():
                self._reconciliation.on_beliefs(address, message, now)
            case Evidence():
                change.accusations.on_evidence(sender, message, now)
                contact.met(sender, address, now)
            case Prepare():
                change.voter.on_prepare(sender, address, message)
            case Promise():
                change.proposer.on_promise(sender, message, now)
            case Promised():
                change.proposer.on_promised(message, now)
            case Accept():
                change.voter.on_accept(sender, address, message, now)
            case Accepted():
                change.on_accepted(sender, message, now)
            case FlushRequest():
                change.on_flush_request(sender, address, message, now)
            case FlushReply():
                change.installer.on_flush_reply(sender, message, now)
            case Install():
                change.on_install(sender, address, message, now)
            case Ready():
                change.installer.on_ready(sender, address, message, now)
            case Activate():
                change.on_activate(message, now)
            case Forecast():
                change.on_forecast(message)
            case Pull():
                contact.pulled(sender, address, message, now)
                change.ask_again(sender)
            case Chosen():
                change.on_chosen(sender, address, message, now)
            case JoinRequest():
                admission.on_join_request(sender, address, message, now)
            case JoinReply():
                admission.received(sender, now)
                admission.on_join_reply(sender, address, message, now)
            case Refused():
                admission.on_refused(message)
            case Introduction():
                contact.on_introduction(sender, message, now)
            case Overtaken():
                contact.on_overtaken(sender, message)
            case LeaveRequest():
                admission.on_leave_request(sender, message, now)
