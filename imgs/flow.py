"""Draws ``flow.svg``: a step's way through the death of a worker, to scale.

The times are those of ``docs/figures.md``, "Where the milliseconds of a recovery go": kill to the first error or proof 11-13 ms, waiting
for more evidence 5, freeze, votes and INSTALL 2, building the group 6-8, activation 1, the redone average 10: 36 ms together.
"""

from __future__ import annotations

from pathlib import Path

from canvas import AMBER, BLUE, GREEN, GREY, INK, PALE, PAPER, QUIET, RED, VIOLET, Canvas

# Milliseconds after the kill.
PROOF, ACCEPT, VOTED, INSTALL, BUILT, ACTIVE, SUCCESS = 11.5, 16.5, 17.5, 18.5, 25.0, 26.0, 36.0
GATHERED, READY = 12.3, 25.5
FIRST, LAST = -5.0, 41.0

LEFT, SCALE = 150.0, 18.2
TOP, LANE = 132.0, 92.0
TRAIN, BUILD, TALK = 0.0, 28.0, 62.0  # below a lane's top
BAR = 22.0


def picture() -> str:
    """The SVG."""
    c = Canvas(
        1010,
        792,
        "Flow: a worker is killed in mid-average, the others finish that very step 36 ms later",
        "to scale, in milliseconds after the kill; medians on two cores, 1 M parameters (docs/figures.md)",
    )
    _axis(c)
    for worker in range(4):
        _lane(c, worker)
    _messages(c)
    _legend(c)
    return c.svg()


def x(milliseconds: float) -> float:
    """Pixels from the left."""
    return round(LEFT + (milliseconds - FIRST) * SCALE, 1)


def y(worker: int, part: float) -> float:
    """Pixels from the top."""
    return TOP + worker * LANE + part


def _axis(c: Canvas) -> None:
    bottom = y(4, -14)
    for moment in (0.0, PROOF, ACCEPT, INSTALL, BUILT, ACTIVE, SUCCESS):
        c.line([(x(moment), TOP - 14), (x(moment), bottom)], dashed=True, line=1)
    for number, moment in enumerate(
        (0.0, PROOF, (PROOF + ACCEPT) / 2, ACCEPT, VOTED, INSTALL, (INSTALL + BUILT) / 2, READY, SUCCESS), 1
    ):
        c.mark(x(moment), TOP - 26, number, colour=RED if number == 1 else INK)
    for moment in (0, 5, 10, 15, 20, 25, 30, 35, 40):
        c.line([(x(moment), bottom), (x(moment), bottom + 6)], colour=QUIET)
        c.text(x(moment), bottom + 20, f"{moment} ms" if not moment else str(moment), size=12, colour=QUIET)
    c.line([(x(FIRST), bottom), (x(LAST), bottom)], colour=QUIET)


def _lane(c: Canvas, worker: int) -> None:
    victim = worker == 2
    c.rect(14, y(worker, -8), 982, LANE - 12, fill=PALE[GREY], stroke=PALE[GREY])
    name = f"worker {worker}"
    c.text(24, y(worker, 16), name, bold=True, anchor="start", colour=RED if victim else INK)
    if not worker:
        c.text(24, y(worker, 34), "most senior:", size=12, anchor="start", colour=QUIET)
        c.text(24, y(worker, 49), "coordinator", size=12, anchor="start", colour=QUIET)
    for part, word in ((TRAIN, "train"), (BUILD, "rebuild"), (TALK, "agent")):
        middle = y(worker, part) + (4 if part == TALK else BAR / 2 + 4)
        c.text(LEFT - 8, middle, word, size=11, anchor="end", colour=QUIET)
    c.line([(x(FIRST), y(worker, TALK)), (x(0 if victim else LAST), y(worker, TALK))], colour=AMBER, line=1.6)
    if victim:
        c.bar(x(FIRST), y(worker, TRAIN), x(0), BAR, "step k", colour=BLUE)
        c.bar(x(0), y(worker, TRAIN), x(PROOF), BAR, "the kernel ends the process", colour=GREY, dark=False)
        c.cross(x(0), y(worker, TRAIN + BAR / 2))
        for line, words in enumerate(
            ("restarted by ftlib run after 1 s:", "a new member, which joins between", "two calls and gets the state")
        ):
            c.text(x(ACTIVE + 0.5), y(worker, 17 + 18 * line), words, size=12, anchor="start", colour=QUIET)
        return
    c.bar(x(FIRST), y(worker, TRAIN), x(PROOF), BAR, "average of step k, by four", colour=BLUE)
    c.bar(x(PROOF), y(worker, TRAIN), x(ACTIVE), BAR, "", colour=RED, dark=False)
    c.text((x(INSTALL) + x(BUILT)) / 2, y(worker, TRAIN + BAR / 2 + 4.4), "waits in the call", size=12.5)
    c.bar(x(ACTIVE), y(worker, TRAIN), x(SUCCESS), BAR, "step k again, by three", colour=GREEN)
    c.bar(x(SUCCESS), y(worker, TRAIN), x(LAST), BAR, "step()", colour=GREEN, dark=False)
    c.bar(x(ACCEPT), y(worker, BUILD), x(INSTALL), BAR, "", colour=AMBER)
    c.bar(x(INSTALL), y(worker, BUILD), x(BUILT), BAR, "new group", colour=VIOLET)


def _messages(c: Canvas) -> None:
    for worker in (1, 3):
        c.arrow([(x(PROOF), y(worker, TALK)), (x(GATHERED), y(0, TALK))], colour=RED, head=7)
        for start, end, there in (
            (ACCEPT, ACCEPT + 0.5, True),
            (VOTED - 0.1, VOTED + 0.4, False),
            (INSTALL - 0.4, INSTALL, True),
            (BUILT, BUILT + 0.4, False),
            (ACTIVE - 0.4, ACTIVE, True),
        ):
            ends = (y(0, TALK), y(worker, TALK)) if there else (y(worker, TALK), y(0, TALK))
            c.arrow([(x(start), ends[0]), (x(end), ends[1])], head=6, line=1.3)


def _legend(c: Canvas) -> None:
    top = y(4, 34)
    steps = [
        ("kill -9 of worker 2", "call k is in progress at all four"),
        ("proof", "its agent says so, or its host refuses connections → EVIDENCE"),
        ("settle, 5 ms", "several crashes become one view change"),
        ("ACCEPT, freeze", "whoever accepts aborts its group and finishes nothing more"),
        ("ACCEPTED", "votes of a quorum, each with a flush report: what I finished"),
        ("INSTALL", "the new view, with the reports of all who stay"),
        ("build", "ranks, sockets and rendezvous of a group of three"),
        ("READY, ACTIVATE", "everybody has the group; the rebuild threads hand it over"),
        ("SUCCESS", "allreduce_average returns; no forward or backward is repeated"),
    ]
    for number, (word, meaning) in enumerate(steps, 1):
        line = top + 27 * (number - 1)
        c.mark(30, line + 6, number, colour=RED if number == 1 else INK)
        c.text(48, line + 10.5, word, size=12.5, bold=True, anchor="start")
        c.text(182, line + 10.5, meaning, size=12.5, anchor="start", colour=QUIET)
    left = 640
    c.rect(left, top - 8, 356, 244, fill=PAPER, stroke=GREEN)
    c.text(left + 178, top + 14, "salvage: a function of all flush reports", bold=True)
    c.box(left + 14, top + 28, 328, 40, "did any survivor finish call k?", colour=GREY)
    c.arrow([(left + 92, top + 68), (left + 92, top + 101)])
    c.arrow([(left + 264, top + 68), (left + 264, top + 101)])
    c.text(left + 84, top + 89, "yes", size=12.5, anchor="end")
    c.text(left + 272, top + 89, "no (as here)", size=12.5, anchor="start")
    c.box(left + 14, top + 102, 156, 84, "adopt", ["take its result, with", "its divisor; checked", "by digest"], colour=BLUE)
    c.box(
        left + 186, top + 102, 156, 84, "redo", ["all of k, from the", "untouched gradients", "of those who stay"], colour=GREEN
    )
    c.text(left + 178, top + 208, "never a mixture of two member sets:", size=12.5, colour=QUIET)
    c.text(left + 178, top + 225, "bit-identical at every survivor", size=12.5, colour=QUIET)


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(picture(), encoding="utf-8")
