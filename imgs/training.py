"""Draws ``training.svg``: what ftlib does in a training loop, worker beside worker, and what goes on beside the loop."""

from __future__ import annotations

from pathlib import Path

from canvas import AMBER, BLUE, GREEN, GREY, PALE, QUIET, RED, VIOLET, Canvas

LEFT, COLUMN, GAP = 148, 206, 5
LOOP = 118
"""Width of a worker's training thread; rebuild thread and agent run beside it."""
REBUILD, AGENT = 152, 181
"""Where these two run, from the column's left edge."""
TOP, BOTTOM = 124, 716
BATCH, FIRST, VIEW, SECOND, STATUS, STEP = 120, 252, 330, 430, 508, 572


def picture() -> str:
    """The SVG."""
    c = Canvas(
        1000,
        768,
        "Role in training: one call in the loop, and a worker may die in it",
        "time runs down; the program sees a longer call and a smaller ft.size, nothing else",
    )
    for worker in range(4):
        _beside(c, worker)
    _bands(c)
    for worker in range(4):
        _loop(c, worker)
    _margin(c)
    _legend(c)
    return c.svg()


def column(worker: int) -> float:
    """Its left edge."""
    return LEFT + worker * (COLUMN + GAP)


def _beside(c: Canvas, worker: int) -> None:
    left, victim = column(worker), worker == 2
    c.rect(left, 82, COLUMN, BOTTOM - 82, fill=PALE[RED] if victim else PALE[GREY], stroke=PALE[GREY])
    c.text(left + 10, 103, f"worker {worker}", size=14, bold=True, anchor="start", colour=RED if victim else "#1f2933")
    end = FIRST + 28 if victim else BOTTOM - 10
    for offset, colour in ((REBUILD, VIOLET), (AGENT, AMBER)):
        c.line([(left + offset, 116), (left + offset, end)], colour=colour, line=2)


def _bands(c: Canvas) -> None:
    """The calls: one operation across workers."""
    for top, colour in ((FIRST, BLUE), (SECOND, GREEN)):
        c.rect(LEFT - 4, top, 4 * COLUMN + 3 * GAP + 8, 56, fill="none", stroke=colour, dashed=True)


def _loop(c: Canvas, worker: int) -> None:
    left, victim = column(worker) + 8, worker == 2
    for place, word in enumerate(("batch", "forward", "backward")):
        top = BATCH + 42 * place
        c.box(left, top, LOOP, 28, word, colour=GREEN)
        c.arrow([(left + LOOP / 2, top + 28), (left + LOOP / 2, top + 41 if place < 2 else FIRST + 9)], head=7)
    c.bar(left, FIRST + 10, left + LOOP, 36, "average", colour=BLUE)
    violet, amber = column(worker) + REBUILD, column(worker) + AGENT
    if victim:
        c.cross(left + LOOP - 8, FIRST + 42, 11)
        c.text(left, FIRST + 90, "kill -9", size=13, bold=True, anchor="start", colour=RED)
        c.text(left, FIRST + 108, "its agent ends with it", size=12, anchor="start", colour=QUIET)
        c.box(left, 560, COLUMN - 16, 132, "worker 2, again", ["restarted by ftlib run,", "a new member: it joins", "between two calls, gets", "the state from a survivor,", "weight 0 in that call"], colour=GREY, dashed=True)  # fmt: skip
        return
    for place, colour, words in ((amber, AMBER, "agree"), (violet, VIOLET, "build")):
        top = VIEW - 6 if colour == AMBER else VIEW + 42
        c.rect(place - 22, top, 44, 30, fill=PALE[colour], stroke=colour, radius=4)
        c.text(place, top + 20, words, size=12.5, room=42)
    c.arrow([(amber, VIEW + 24), (amber, VIEW + 57), (violet + 23, VIEW + 57)], colour=AMBER, head=7)
    c.arrow([(violet, VIEW + 72), (violet, SECOND + 28), (left + LOOP + 1, SECOND + 28)], colour=VIOLET, head=7)
    c.bar(left, FIRST + 46, left + LOOP, SECOND - FIRST - 36, "waits", colour=BLUE, dark=False)
    c.bar(left, SECOND + 10, left + LOOP, 36, "average", colour=GREEN)
    c.arrow([(left + LOOP / 2, SECOND + 46), (left + LOOP / 2, STATUS - 1)], head=7)
    c.box(left, STATUS, LOOP, 34, "SUCCESS", colour=BLUE)
    c.arrow([(left + LOOP / 2, STATUS + 34), (left + LOOP / 2, STEP - 1)], head=7)
    c.box(left, STEP, LOOP, 44, "apply", ["optimizer.step()"], colour=GREEN)
    c.arrow([(left + LOOP / 2, STEP + 44), (left + LOOP / 2, STEP + 77)], head=7)
    c.text(left + LOOP / 2, STEP + 94, "next batch", size=12.5, colour=QUIET)
    c.text(left + LOOP / 2, STEP + 111, "ft.size is 3", size=12.5, colour=QUIET)


def _margin(c: Canvas) -> None:
    rows = [
        (BATCH + 50, ["your program", "each its own data"], "#1f2933"),
        (FIRST + 16, ["one call:", "allreduce_average,", "call 41, by four"], BLUE),
        (VIEW + 10, ["inside that call:", "proof of death,", "a view agreed,", "a group built"], AMBER),
        (SECOND + 16, ["call 41 again:", "by three, from the", "same gradients"], GREEN),
        (STATUS + 20, ["the same Status", "at all of them"], BLUE),
        (STEP + 20, ["bit-identical", "parameters"], "#1f2933"),
    ]
    for top, lines, colour in rows:
        for number, line in enumerate(lines):
            c.text(20, top + 17 * number, line, size=12.5, anchor="start", colour=colour, room=124, bold=not number)


def _legend(c: Canvas) -> None:
    entries = [
        (GREEN, "training thread: your loop"),
        (VIOLET, "rebuild thread: freezes, builds groups"),
        (AMBER, "agent process: pings, evidence, agreement"),
    ]
    left = LEFT
    for colour, words in entries:
        c.rect(left, 734, 14, 14, fill=PALE[colour], stroke=colour, radius=3)
        c.text(left + 22, 746, words, size=12.5, anchor="start")
        left += 230 if colour == GREEN else 300


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(picture(), encoding="utf-8")
