"""Draws ``life.svg``: one process lifetime as it sees itself, and what its data plane does meanwhile."""

from __future__ import annotations

from pathlib import Path

from canvas import AMBER, BLUE, GREEN, GREY, INK, QUIET, RED, VIOLET, Canvas
from statechart import Arrow, Box, chart

from consensus.protocol.state.life import LIFE, Life, Turn
from ftlib.core.plane.phase import PLANE, Phase, Switch


def picture() -> str:
    """The SVG."""
    c = Canvas(
        1000,
        640,
        "A member's life, and its data plane",
        "one process lifetime: a restarted worker, or one that rejoins, begins a new one; a double frame is an end",
    )
    _life(c)
    c.line([(24, 448), (976, 448)])
    c.text(24, 474, "Its data plane", size=15, bold=True, anchor="start")
    c.text(
        146,
        474,
        "(ftlib/core/plane/plane.py) finish or freeze is one transition: a call ends in ACTIVE or not at all",
        size=12.5,
        colour=QUIET,
        anchor="start",
    )
    _plane(c)
    return c.svg()


def _life(c: Canvas) -> None:
    boxes = {
        Life.SEARCHING: Box(70, 110, AMBER, ["asks introducers"]),
        Life.MEMBER: Box(420, 110, GREEN, ["detects, votes, averages"], width=170),
        Life.LEAVING: Box(790, 110, BLUE, ["goes on until it is out"], width=160),
        Life.TURNED_AWAY: Box(40, 380, GREY, ["JoinError"]),
        Life.DEAD: Box(215, 380, RED, ["said so to all first"]),
        Life.EXCLUDED: Box(430, 380, RED, ["Excluded"]),
        Life.BLOCKED: Box(620, 380, AMBER, ["QuorumLost"]),
        Life.LEFT: Box(820, 380, BLUE, ["by close, drain"]),
    }
    arrows = {
        (Life.SEARCHING, Turn.FOUNDED): Arrow([(198, 120), (419, 120)], (215, 114), 190, colour=GREEN),
        (Life.SEARCHING, Turn.ADMITTED): Arrow([(198, 140), (419, 140)], (215, 134), 190, colour=GREEN),
        (Life.MEMBER, Turn.LEAVE_REQUESTED): Arrow([(590, 130), (789, 130)], (640, 124), 140, colour=BLUE),
        (Life.LEAVING, Turn.LEAVE_REQUESTED): Arrow([(850, 110), (850, 92), (890, 92), (890, 109)], colour=BLUE),
        (Life.SEARCHING, Turn.NOT_ADMITTED): Arrow([(104, 150), (104, 376)], (112, 350), 100, colour=GREY),
        (Life.SEARCHING, Turn.DIED): Arrow([(140, 150), (140, 220), (280, 220), (280, 376)], colour=RED),
        (Life.MEMBER, Turn.DIED): Arrow([(445, 150), (445, 220), (280, 220), (280, 376)], (288, 214), 150, colour=RED),
        (Life.LEAVING, Turn.DIED): Arrow([(810, 150), (810, 220), (280, 220), (280, 376)], colour=RED),
        (Life.MEMBER, Turn.EXCLUDED): Arrow([(500, 150), (500, 376)], (508, 350), 110, colour=RED),
        (Life.MEMBER, Turn.OVERTAKEN): Arrow([(460, 150), (460, 376)], (340, 350), 116, colour=RED),
        (Life.LEAVING, Turn.OVERTAKEN): Arrow([(825, 150), (825, 240), (460, 240), (460, 376)], colour=RED),
        (Life.MEMBER, Turn.QUORUM_LOST): Arrow([(540, 150), (540, 260), (684, 260), (684, 376)], (692, 350), 120, colour=AMBER),
        (Life.LEAVING, Turn.QUORUM_LOST): Arrow([(840, 150), (840, 260), (684, 260), (684, 376)], colour=AMBER),
        (Life.SEARCHING, Turn.WENT): Arrow([(176, 150), (176, 300), (870, 300), (870, 376)], (720, 294), 150, colour=BLUE),
        (Life.MEMBER, Turn.WENT): Arrow([(570, 150), (570, 300), (870, 300), (870, 376)], colour=BLUE),
        (Life.LEAVING, Turn.WENT): Arrow([(900, 150), (900, 376)], colour=BLUE),
    }
    chart(c, LIFE, boxes, arrows, [(30, 130), (69, 130)])


def _plane(c: Canvas) -> None:
    boxes = {
        Phase.WAITING: Box(70, 520, AMBER, ["for a first view"]),
        Phase.ACTIVE: Box(360, 520, GREEN, ["averages"]),
        Phase.FROZEN: Box(700, 520, VIOLET, ["for a view change"]),
        Phase.STOPPED: Box(850, 580, GREY),
    }
    arrows = {
        (Phase.WAITING, Switch.ACTIVATE): Arrow([(198, 540), (359, 540)], (206, 534), 150, colour=GREEN),
        (Phase.FROZEN, Switch.ACTIVATE): Arrow([(699, 550), (489, 550)], colour=GREEN),
        (Phase.ACTIVE, Switch.FREEZE): Arrow([(488, 530), (699, 530)], (496, 524), 200, colour=VIOLET),
        (Phase.WAITING, Switch.STOP): Arrow([(134, 560), (134, 604), (846, 604)], (560, 598), 160, colour=INK),
        (Phase.ACTIVE, Switch.STOP): Arrow([(424, 560), (424, 604), (846, 604)], colour=INK),
        (Phase.FROZEN, Switch.STOP): Arrow([(828, 540), (914, 540), (914, 576)], colour=INK),
    }
    chart(c, PLANE, boxes, arrows, [(30, 540), (69, 540)])


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(picture(), encoding="utf-8")
