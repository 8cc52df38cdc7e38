"""What happened to each worker, for the end of a run: one line each, and the traceback that matters last."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from .ledger import Entry, Ledger, Phase
from .process import describe_exit

__all__ = ["outcome", "table", "traceback_of"]


def outcome(entry: Entry) -> str:
    """How the slot's newest lifetime ended, in words."""
    match entry.phase:
        case Phase.DONE:
            return "finished"
        case Phase.RETIRED if not entry.cause:
            return "drained" if entry.code == 0 else f"ended with the run ({describe_exit(entry.code)})"
        case Phase.FAILED | Phase.RETIRED:
            return describe_exit(entry.code) + (f" ({entry.cause})" if entry.cause else "")
        case _:
            return str(entry.phase.value)


def table(ledger: Ledger, tails: Mapping[int, Sequence[bytes]], *, coloured: bool, width: int) -> str:
    """A table of all slots. ``tails``: the last stderr lines a slot, of which the very last is shown for failures."""
    from rich.console import Console  # noqa: PLC0415 - only the end of a run that had trouble needs it
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    rows = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("worker", "starts", "outcome", "last line on stderr"):
        rows.add_column(name, no_wrap=True, overflow="ellipsis")
    for entry in ledger.entries:
        last = next((line for line in reversed(tails.get(entry.index, ())) if line.strip()), b"")
        shown = last.decode("utf-8", "replace").strip()[: width // 2] if entry.phase is Phase.FAILED else ""
        style = "green" if entry.phase is Phase.DONE else "red" if entry.phase is Phase.FAILED else ""
        rows.add_row(str(entry.index), str(entry.starts), Text(outcome(entry), style), Text(shown))
    text = io.StringIO()
    Console(file=text, force_terminal=coloured, no_color=not coloured, width=width, highlight=False).print(rows)
    return text.getvalue()


def traceback_of(index: int, tail: Sequence[bytes]) -> str:
    """The last stderr lines of one worker, as it wrote them."""
    lines = "".join(line.decode("utf-8", "replace") + "\n" for line in tail)
    return f"the last lines of worker {index}:\n{lines}" if lines else f"worker {index} wrote nothing to stderr\n"
