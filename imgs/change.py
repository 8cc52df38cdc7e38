"""Draws ``change.svg``: one view change as its proposer, its driver and each member see it."""

from __future__ import annotations

from pathlib import Path

from canvas import AMBER, BLUE, GREEN, GREY, QUIET, RED, VIOLET, Canvas
from statechart import Arrow, Box, chart

from consensus.protocol.agreement.attempt import ATTEMPT, AttemptPhase, Outcome
from consensus.protocol.agreement.installation import INSTALLATION, Gain, InstallationStage
from consensus.protocol.state.standing import STANDING, Standing, StandingEvent

ROWS = (132, 322, 512)
"""Where the three begin, from the top."""


def picture() -> str:
    """The SVG."""
    c = Canvas(
        1000,
        700,
        "A view change: an attempt, an installation, and one view at every member",
        "left to right is the way of an undisturbed change; a double frame is an end",
    )
    heads = [
        ("Proposer", "(protocol/attempt.py) one ballot for the next epoch"),
        ("Driver", "(protocol/installation.py) brings what was chosen to life"),
        ("Every member", "(protocol/standing.py) its newest chosen view"),
    ]
    for top, (name, words), at in zip(ROWS, heads, (116, 92, 160), strict=True):
        c.text(24, top - 22, name, size=15, bold=True, anchor="start")
        c.text(at, top - 22, words, size=12.5, colour=QUIET, anchor="start")
    _attempt(c, ROWS[0])
    _installation(c, ROWS[1])
    _standing(c, ROWS[2])
    for top in ROWS[1:]:
        c.line([(24, top - 48), (976, top - 48)])
    return c.svg()


def _attempt(c: Canvas, y: float) -> None:
    boxes = {
        AttemptPhase.PREPARE: Box(70, y, AMBER, ["collects PROMISE"], width=140),
        AttemptPhase.ACCEPT: Box(440, y, BLUE, ["collects ACCEPTED"], width=140),
        AttemptPhase.CHOSEN: Box(800, y, GREEN, ["decided for ever"], width=140),
        AttemptPhase.OUTBID: Box(440, y + 84, GREY, ["tries again, higher"], width=140),
        AttemptPhase.OVERTAKEN: Box(800, y + 84, GREY, ["not needed any more"], width=140),
    }
    bend = y + 66
    arrows = {
        (AttemptPhase.PREPARE, Outcome.PROMISED): Arrow([(210, y + 20), (439, y + 20)], (226, y + 14), 200, colour=BLUE),
        (AttemptPhase.ACCEPT, Outcome.ACCEPTED): Arrow([(580, y + 20), (796, y + 20)], (620, y + 14), 180, colour=GREEN),
        (AttemptPhase.PREPARE, Outcome.REFUSED): Arrow(
            [(110, y + 40), (110, y + 104), (436, y + 104)], (170, y + 98), 240, colour=RED
        ),
        (AttemptPhase.ACCEPT, Outcome.REFUSED): Arrow([(476, y + 40), (476, y + 80)], colour=RED),
        (AttemptPhase.ACCEPT, Outcome.STALE): Arrow([(510, y + 40), (510, y + 80)], (592, y + 108), 190, colour=VIOLET),
        (AttemptPhase.PREPARE, Outcome.NEWER): Arrow([(170, y + 40), (170, bend), (870, bend), (870, y + 80)], colour=GREY),
        (AttemptPhase.ACCEPT, Outcome.NEWER): Arrow(
            [(550, y + 40), (550, bend), (870, bend), (870, y + 80)], (620, y + 60), 220, colour=GREY
        ),
    }
    chart(c, ATTEMPT, boxes, arrows, [(30, y + 20), (69, y + 20)])


def _installation(c: Canvas, y: float) -> None:
    boxes = {
        InstallationStage.REPORTS: Box(70, y, AMBER, ["asks with FLUSH-REQUEST"], width=170),
        InstallationStage.READIES: Box(440, y, VIOLET, ["INSTALL is out"], width=140),
        InstallationStage.ACTIVE: Box(800, y, GREEN, ["ACTIVATE is out"], width=140),
        InstallationStage.GIVEN_UP: Box(800, y + 84, GREY, ["its successor takes over"], width=160),
    }
    bend = y + 66
    arrows = {
        (InstallationStage.REPORTS, Gain.REPORTED): Arrow([(240, y + 20), (439, y + 20)], (256, y - 1), 180, colour=VIOLET),
        (InstallationStage.READIES, Gain.ALL_READY): Arrow([(580, y + 20), (799, y + 20)], (610, y + 14), 200, colour=GREEN),
        (InstallationStage.REPORTS, Gain.NEWER): Arrow(
            [(140, y + 40), (140, bend), (870, bend), (870, y + 80)], (620, y + 60), 220, colour=GREY
        ),
        (InstallationStage.READIES, Gain.NEWER): Arrow([(510, y + 40), (510, bend), (870, bend), (870, y + 80)], colour=GREY),
        (InstallationStage.ACTIVE, Gain.NEWER): Arrow([(870, y + 40), (870, y + 80)], colour=GREY),
    }
    chart(c, INSTALLATION, boxes, arrows, [(30, y + 20), (69, y + 20)])


def _standing(c: Canvas, y: float) -> None:
    boxes = {
        Standing.CHOSEN: Box(70, y, AMBER, ["votes on what follows"], width=150),
        Standing.INSTALLED: Box(330, y, VIOLET, ["builds its group"], width=130),
        Standing.READY: Box(580, y, BLUE, ["repeats READY"], width=130),
        Standing.ACTIVE: Box(820, y, GREEN, ["acts in it"], width=130),
        Standing.SUPERSEDED: Box(820, y + 120, GREY, ["never acts in it again"], width=150),
    }
    bend, down = y + 96, y + 116
    arrows = {
        (Standing.CHOSEN, StandingEvent.INSTALL): Arrow([(220, y + 20), (329, y + 20)], (226, y - 1), 100, colour=VIOLET),
        (Standing.INSTALLED, StandingEvent.BUILT): Arrow([(460, y + 20), (579, y + 20)], (466, y - 1), 110, colour=BLUE),
        (Standing.READY, StandingEvent.BUILT): Arrow([(620, y + 40), (620, y + 62), (660, y + 62), (660, y + 41)], colour=BLUE),
        (Standing.ACTIVE, StandingEvent.BUILT): Arrow(
            [(840, y + 40), (840, y + 62), (880, y + 62), (880, y + 41)], colour=BLUE
        ),
        (Standing.READY, StandingEvent.ACTIVATE): Arrow([(710, y + 20), (819, y + 20)], (716, y - 1), 100, colour=GREEN),
        (Standing.CHOSEN, StandingEvent.NEWER): Arrow(
            [(145, y + 40), (145, bend), (900, bend), (900, down)], (640, y + 90), 220, colour=GREY
        ),
        (Standing.INSTALLED, StandingEvent.NEWER): Arrow([(395, y + 40), (395, bend), (900, bend), (900, down)], colour=GREY),
        (Standing.READY, StandingEvent.NEWER): Arrow([(600, y + 40), (600, bend), (900, bend), (900, down)], colour=GREY),
        (Standing.ACTIVE, StandingEvent.NEWER): Arrow([(900, y + 40), (900, down)], colour=GREY),
    }
    chart(c, STANDING, boxes, arrows, [(30, y + 20), (69, y + 20)])


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(picture(), encoding="utf-8")
