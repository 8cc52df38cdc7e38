"""A prefetch begins what its answer is for at once, and nothing once it is closed."""

from __future__ import annotations

import threading

import pytest

from ftlib.recovery.joiner import prefetch as prefetching
from ftlib.recovery.joiner.prefetch import Prefetch

LIMIT = 120.0


def prefetch(ask: object, begin: object = None) -> Prefetch[str, str]:
    return Prefetch(None, 7, ask, lambda: True, begin)  # type: ignore[arg-type]


def test_the_answer_is_acted_upon_before_anybody_asks_for_it() -> None:
    acted = threading.Event()

    def begin(answer: str) -> str:
        acted.set()
        return answer + "!"

    asked = prefetch(lambda go_on: f"here {go_on()}", begin)
    assert acted.wait(LIMIT)
    assert asked.result() == "here True"
    assert asked.begun == "here True!"
    assert asked.version == 7


def test_what_goes_wrong_there_is_raised_with_the_answer() -> None:
    def begin(answer: str) -> str:
        raise ValueError(answer)

    asked = prefetch(lambda _go_on: "no", begin)
    with pytest.raises(ValueError, match="no"):
        asked.result()
    assert asked.begun is None


def test_nothing_begins_once_it_is_closed() -> None:
    closed, begun = threading.Event(), list[str]()

    def ask(go_on: object) -> str:
        assert closed.wait(LIMIT)
        assert not go_on()  # type: ignore[operator]
        return "late"

    def begin(answer: str) -> str:
        begun.append(answer)
        return answer

    asked = prefetch(ask, begin)
    asked.close()
    closed.set()
    assert asked.result() == "late"
    assert not begun
    assert asked.begun is None


def test_closing_waits_for_what_is_being_begun() -> None:
    beginning, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    def begin(answer: str) -> str:
        beginning.set()
        assert go_on.wait(LIMIT)
        assert not closed.is_set()
        return answer

    asked = prefetch(lambda _go_on: "here", begin)
    assert beginning.wait(LIMIT)

    def close() -> None:
        asked.close()
        closed.set()

    closing = threading.Thread(target=close)
    closing.start()
    go_on.set()
    closing.join()
    assert asked.begun == "here"  # whoever closes it can end that


def test_its_thread_is_on_the_device_of_the_program_and_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What begins there asks torch for the current device, and would wake the first one."""
    shared: list[threading.Thread] = []
    monkeypatch.setattr(prefetching, "thread_device", lambda: lambda: shared.append(threading.current_thread()))
    asked = prefetch(lambda _go_on: str(threading.get_ident()))
    assert [asked.result()] == [str(thread.ident) for thread in shared]
    assert all(thread.daemon for thread in shared)
