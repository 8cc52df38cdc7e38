"""Draws ``architecture.svg``: one worker, its two processes, and what joins it to the others."""

from __future__ import annotations

from pathlib import Path

from canvas import AMBER, BLUE, GREEN, GREY, PALE, QUIET, RED, VIOLET, Canvas

TRAINING = (20, 82, 600, 436)  # x, y, width, height
AGENT = (744, 152, 236, 366)


def picture() -> str:
    """The SVG."""
    c = Canvas(
        1000,
        700,
        "Architecture: one worker is two processes that live and die together",
        "the training process averages; the agent process beside it knows who is alive and what was agreed",
    )
    _training_process(c)
    _agent_process(c)
    _between(c)
    _others(c)
    return c.svg()


def _training_process(c: Canvas) -> None:
    x, y, width, height = TRAINING
    c.rect(x, y, width, height, fill=PALE[GREY], stroke=GREY, radius=10)
    c.text(x + 18, y + 24, "training process", size=14, bold=True, anchor="start")
    c.text(x + width - 18, y + 24, "imports torch", colour=QUIET, anchor="end")
    c.box(38, 118, 564, 58, "your program", ["batch → forward → backward → average → optimizer.step()"], colour=GREEN)
    c.arrow([(230, 176), (230, 201)])
    c.arrow([(400, 202), (400, 177)])
    c.text(240, 193, "gradients", size=12, anchor="start", colour=QUIET)
    c.text(410, 193, "Status", size=12, anchor="start", colour=QUIET)
    c.box(38, 202, 564, 58, "FTLib", ["init · register_state · allreduce_average · barrier · on_view_change"], colour=BLUE)
    parts = [
        ("engine", "wait, decide,", "do, or again"),
        ("calls", "stage, reduce,", "adopt or redo"),
        ("plane", "finish, freeze,", "a new group"),
        ("recovery", "the state,", "for joiners"),
    ]
    for place, (title, *lines) in enumerate(parts):
        left = 38 + place * 108
        c.box(left, 284, 102, 84, title, lines, colour=BLUE)
        c.arrow([(left + 51, 260), (left + 51, 283)], both=True)
    c.box(
        38, 396, 426, 104, "frameworks", ["gloo: process groups that can be aborted at once", "memory: in one process, for tests"], colour=VIOLET
    )  # fmt: skip
    for left in (146, 254):
        c.arrow([(left + 51, 368), (left + 51, 395)], both=True)
    c.box(
        482, 284, 120, 216, "consensus", ["its door: Gossip,", "SharedStorage", "", "in: orders", "", "out: reports"], colour=AMBER
    )  # fmt: skip
    c.arrow([(542, 260), (542, 283)], both=True)


def _agent_process(c: Canvas) -> None:
    x, y, width, height = AGENT
    c.box(x, 82, width, 48, "ftlib run", ["starts, restarts, kills who hangs"], colour=GREY, dashed=True)
    c.arrow([(x + width / 2, 130), (x + width / 2, y - 1)], both=True, dashed=True)
    c.rect(x, y, width, height, fill=PALE[GREY], stroke=GREY, radius=10)
    c.text(x + 16, y + 24, "agent process", size=14, bold=True, anchor="start")
    c.text(x + width - 16, y + 24, "no torch", colour=QUIET, anchor="end")
    layers = [
        (190, 94, "protocol", ["who is alive, who joins;", "votes or records for a view", "no socket, clock or thread"]),
        (298, 66, "wire", ["exact schema, bounded sizes;", "sealed with a secret"]),
        (378, 122, "runtime", ["driver: the only clock", "UDP and HTTP, one port", "liveness connections", "fencing requests"]),
    ]
    for number, (top, tall, title, lines) in enumerate(layers):
        c.box(x + 16, top, width - 32, tall, title, lines, colour=AMBER)
        if number:
            c.arrow([(x + width / 2, top - 14), (x + width / 2, top - 1)], both=True, head=6)


def _between(c: Canvas) -> None:
    left, right = TRAINING[0] + TRAINING[2], AGENT[0]
    middle = (left + right) / 2
    c.arrow([(603, 340), (right - 1, 340)], both=True, colour=AMBER, line=2.6, head=11)
    c.text(middle, 296, "socketpair", size=12.5, bold=True)
    c.text(middle, 314, "← orders: Freeze,", size=12.5)
    c.text(middle, 330, "Installed, Activated", size=12)
    c.text(middle, 362, "reports: Hint, →", size=12.5)
    c.text(middle, 378, "Flushed, Built", size=12.5)
    c.text(middle, 412, "when one end", size=12, colour=RED)
    c.text(middle, 428, "closes, the part", size=12, colour=RED)
    c.text(middle, 444, "of both is over", size=12, colour=RED)
    c.text(middle, 478, "shared memory:", size=12, bold=True)
    c.text(middle, 494, "progress, life lock", size=12)


def _others(c: Canvas) -> None:
    c.box(
        20,
        590,
        470,
        84,
        "the other workers",
        ["each the same pair of processes; no master, no lighthouse, no driver"],
        colour=GREY,
    )
    c.box(
        520, 590, 204, 84, "a shared store, or none", ["directory, Redis or etcd:", "leases, records of views"], colour=AMBER, dashed=True
    )  # fmt: skip
    c.arrow([(251, 500), (251, 589)], both=True, colour=VIOLET, line=2.6, head=11)
    c.text(264, 545, "tensors: Gloo, TCP,", size=12.5, anchor="start")
    c.text(264, 562, "one connection a pair, a group a view", size=12.5, anchor="start", colour=QUIET)
    c.arrow([(AGENT[0] + 40, 500), (AGENT[0] + 40, 575), (440, 575), (440, 589)], both=True, colour=AMBER, line=2.6, head=11)
    c.arrow([(AGENT[0] + 52, 500), (AGENT[0] + 52, 632), (725, 632)], both=True, colour=AMBER, dashed=True)
    c.text(AGENT[0] + 30, 545, "control: UDP and HTTP", size=12.5, anchor="end")
    c.text(AGENT[0] + 30, 562, "pings, evidence, ballots", size=12.5, anchor="end", colour=QUIET)
    c.box(
        AGENT[0] + 70, 546, 166, 128, "simulation", ["the same protocol", "and codec; a virtual", "clock, one seed,", "many histories"], colour=AMBER, dashed=True
    )  # fmt: skip


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(picture(), encoding="utf-8")
