"""Draws ``detection.svg``: one ping, and what is believed of the member that it goes to."""

from __future__ import annotations

from pathlib import Path

from canvas import AMBER, BLUE, GREEN, GREY, QUIET, RED, VIOLET, Canvas
from statechart import Arrow, Box, chart

from consensus.messages import Status
from consensus.protocol.detection.probe import PROBE, ProbeEvent, ProbeStage
from consensus.protocol.state.member_table import BELIEF, Sign


def picture() -> str:
    """The SVG."""
    c = Canvas(
        1000,
        480,
        "Detection: one ping, and what is believed of its target",
        "a belief decides nothing: only the view that a quorum votes for takes a member out; a double frame is an end",
    )
    c.text(24, 96, "A ping", size=15, bold=True, anchor="start")
    c.text(86, 96, "(protocol/probe.py)", size=12.5, colour=QUIET, anchor="start")
    _probe(c)
    c.line([(614, 84), (614, 456)])
    c.text(634, 96, "A belief", size=15, bold=True, anchor="start")
    c.text(710, 96, "(protocol/member_table.py)", size=12.5, colour=QUIET, anchor="start")
    _belief(c)
    return c.svg()


def _probe(c: Canvas) -> None:
    boxes = {
        ProbeStage.DIRECT: Box(60, 130, BLUE, ["pinged"], width=120),
        ProbeStage.INDIRECT: Box(60, 240, AMBER, ["asked three others"], width=120),
        ProbeStage.VOUCHED: Box(440, 185, VIOLET, ["it lives, no contact"], width=130),
        ProbeStage.FAILED: Box(50, 400, RED, ["it is suspected"]),
        ProbeStage.ANSWERED: Box(200, 400, GREEN, ["contact, if direct"], width=118),
        ProbeStage.DROPPED: Box(342, 400, GREY, width=110),
        ProbeStage.LAPSED: Box(478, 400, GREY, ["means nothing"], width=110),
    }
    arrows = {
        (ProbeStage.DIRECT, ProbeEvent.NONE): Arrow([(110, 170), (110, 239)], (118, 196), 96, colour=AMBER),
        (ProbeStage.DIRECT, ProbeEvent.ACK): Arrow([(180, 158), (259, 158), (259, 396)], (265, 340), 60, colour=GREEN),
        (ProbeStage.INDIRECT, ProbeEvent.ACK): Arrow([(180, 268), (259, 268), (259, 396)], colour=GREEN),
        (ProbeStage.VOUCHED, ProbeEvent.ACK): Arrow([(460, 225), (460, 300), (259, 300), (259, 396)], colour=GREEN),
        (ProbeStage.DIRECT, ProbeEvent.SIGN): Arrow([(180, 142), (505, 142), (505, 184)], (300, 136), 150, colour=VIOLET),
        (ProbeStage.INDIRECT, ProbeEvent.SIGN): Arrow([(180, 252), (380, 252), (380, 205), (439, 205)], colour=VIOLET),
        (ProbeStage.VOUCHED, ProbeEvent.SIGN): Arrow([(570, 196), (590, 196), (590, 214), (571, 214)], colour=VIOLET),
        (ProbeStage.DIRECT, ProbeEvent.ROUND_OVER): Arrow([(60, 150), (36, 150), (36, 340), (80, 340), (80, 396)], colour=RED),
        (ProbeStage.INDIRECT, ProbeEvent.ROUND_OVER): Arrow([(80, 280), (80, 396)], (88, 366), 120, colour=RED),
        (ProbeStage.VOUCHED, ProbeEvent.ROUND_OVER): Arrow([(533, 225), (533, 396)], colour=GREY),
        (ProbeStage.DIRECT, ProbeEvent.GONE): Arrow([(180, 166), (340, 166), (340, 330), (397, 330), (397, 396)], colour=GREY),
        (ProbeStage.INDIRECT, ProbeEvent.GONE): Arrow(
            [(180, 276), (340, 276), (340, 330), (397, 330), (397, 396)], colour=GREY
        ),
        (ProbeStage.VOUCHED, ProbeEvent.GONE): Arrow(
            [(490, 225), (490, 330), (397, 330), (397, 396)], (404, 362), 90, colour=GREY
        ),
    }
    chart(c, PROBE, boxes, arrows, [(30, 118), (90, 118), (90, 129)])


def _belief(c: Canvas) -> None:
    boxes = {
        Status.ALIVE: Box(720, 150, GREEN, ["trusted"], width=180),
        Status.SUSPECT: Box(720, 290, AMBER, ["its timer: silence"], width=180),
        Status.DEAD: Box(846, 400, RED, ["for this lifetime"]),
    }
    arrows = {
        (Status.ALIVE, Sign.SUSPECTED): Arrow([(738, 190), (738, 289)], (730, 224), 90, anchor="end", colour=AMBER),
        (Status.SUSPECT, Sign.SUSPECTED): Arrow([(720, 302), (696, 302), (696, 318), (719, 318)], colour=AMBER),
        (Status.SUSPECT, Sign.ANSWERED): Arrow([(764, 290), (764, 191)], (770, 230), 60, colour=GREEN),
        (Status.SUSPECT, Sign.REFUTED): Arrow([(836, 290), (836, 191)], (842, 222), 80, colour=BLUE),
        (Status.ALIVE, Sign.REFUTED): Arrow([(790, 150), (790, 128), (830, 128), (830, 149)], colour=BLUE),
        (Status.ALIVE, Sign.PROVEN): Arrow([(900, 170), (956, 170), (956, 396)], (912, 164), 60, colour=RED),
        (Status.SUSPECT, Sign.PROVEN): Arrow([(880, 330), (880, 396)], colour=RED),
    }
    chart(c, BELIEF, boxes, arrows, [(690, 170), (719, 170)])


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(picture(), encoding="utf-8")
