"""What becomes of a worker that registers other things than the rest of the job, or nothing."""

from __future__ import annotations

import errno
import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ftlib import ConfigError, ElasticSampler, FTLib, FTLibError, Status
from ftlib.core.plane.plane import Plane
from ftlib.recovery.layout import requests
from ftlib.recovery.layout.requests import Failures
from ftlib.recovery.whole_state import Transfer
from ftlib.state.registry import Registered
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import Company, at_once, call_until, company, in_thread


@contextmanager
def founders(count: int, **settings: str) -> Iterator[Company]:
    """They have met, and called nothing yet."""
    crew = Company(count, **settings)
    try:
        yield crew
    finally:
        at_once(*[ft.close for ft in crew.members])


def register(ft: FTLib) -> nn.Linear:
    model = nn.Linear(2, 1)
    ft.register_state(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    return model


def average(ft: FTLib, model: nn.Module) -> Status:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return ft.allreduce_average(model)


def training(ft: FTLib, model: nn.Module) -> threading.Thread:
    """It averages until it is closed."""

    def train() -> None:
        while average(ft, model):
            pass

    return in_thread(train)


def test_a_founder_that_registers_nothing_is_told() -> None:
    with founders(3) as crew:
        first, second, careless = crew.members

        def forgets() -> None:
            with pytest.raises(
                ConfigError, match=r"this worker registered no state, but .* did: call register_state everywhere"
            ):
                average(careless, nn.Linear(2, 1))
            careless.close()

        def goes_on(ft: FTLib) -> None:
            model = register(ft)
            call_until(ft, lambda: ft.size == 2)
            assert average(ft, model) is Status.SUCCESS

        at_once(functools.partial(goes_on, first), functools.partial(goes_on, second), forgets)


def test_it_is_told_though_the_others_register_long_after_its_call() -> None:
    with founders(2) as crew:
        senior, careless = crew.members
        told = threading.Event()

        def forgets() -> None:
            with pytest.raises(ConfigError, match="registered no state"):
                careless.barrier()
            told.set()

        thread = in_thread(forgets)
        eventually(lambda: careless._plane.current is not None, "it is in its call")
        register(senior)
        thread.join()
        assert told.is_set()


def test_a_joiner_that_registers_nothing_is_told() -> None:
    with founders(1) as crew:
        [alone] = crew.members
        thread = training(alone, register(alone))
        joiner = crew.init()
        with pytest.raises(ConfigError, match="this worker registered no state"):
            average(joiner, nn.Linear(2, 1))
        joiner.close()
        eventually(lambda: alone.size == 1, "it goes on by itself")
        alone.close()
        thread.join()


def test_where_nobody_registers_nobody_minds() -> None:
    with founders(2) as crew:
        threads = [training(ft, nn.Linear(2, 1)) for ft in crew.members]
        joiner = crew.init()
        assert average(joiner, nn.Linear(2, 1)) is Status.SUCCESS
        assert joiner.size == 3
        for ft in list(crew.members):
            ft.close()
        for thread in threads:
            thread.join()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_training_without_registered_state_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with founders(2) as crew:
        for _ in range(3):
            at_once(*[functools.partial(average, ft, nn.Linear(2, 1)) for ft in crew.members])
    told = [text for text in warnings(caplog) if "no state is registered" in text]
    assert len(told) == 2, "one at each of them"
    assert "call register_state(model=..., optimizer=...) at every worker" in told[0]


def test_calls_that_train_nothing_need_no_state(caplog: pytest.LogCaptureFixture) -> None:
    with founders(2) as crew:
        at_once(*[functools.partial(ft.allreduce_average, torch.ones(2)) for ft in crew.members])
    assert not [text for text in warnings(caplog) if "registered" in text]


@pytest.mark.parametrize("registered", [False, True])
def test_a_sampler_that_is_read_and_not_registered_is_told_of(registered: bool, caplog: pytest.LogCaptureFixture) -> None:
    with founders(2) as crew:

        def learn(ft: FTLib) -> None:
            model, sampler = nn.Linear(2, 1), ElasticSampler(range(8), batch_size=2)
            ft.register_state(model=model, **{"sampler": sampler} if registered else {})
            for _ in zip(range(2), sampler, strict=False):
                average(ft, model)

        at_once(*[functools.partial(learn, ft) for ft in crew.members])
    told = [text for text in warnings(caplog) if "pass it as sampler= to register_state" in text]
    assert len(told) == (0 if registered else 2)


@pytest.mark.parametrize(("nonfinite", "count"), [("veto", 1), ("pass", 0)])
def test_a_scaler_that_would_never_hear_of_inf_is_told_of(nonfinite: str, count: int, caplog: pytest.LogCaptureFixture) -> None:
    with FTLib.init(framework="memory", config={}, agent="thread", nonfinite=nonfinite) as ft:
        ft.register_state(model=nn.Linear(2, 1), extra=torch.amp.GradScaler("cpu"))
    assert len([text for text in warnings(caplog) if "nonfinite=pass" in text]) == count


class Best:
    """Of a program's own: it keeps whatever it is given."""

    def __init__(self) -> None:
        self.value: object = 0.0

    def state_dict(self) -> dict[str, object]:
        if isinstance(self.value, Exception):
            raise self.value
        return {"best": self.value}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.value = state["best"]


def test_the_initial_state_is_dropped_once_all_founders_have_it() -> None:
    """It is as large as the model, and its memory is wanted for gradients."""
    with founders(3) as crew:
        models = at_once(*[functools.partial(register, ft) for ft in crew.members])
        assert len({tuple(model.weight.flatten().tolist()) for model in models}) == 1
        transfers = [ft._lives.life.transfer for ft in crew.members]
        eventually(lambda: all(transfer._snapshot is None for transfer in transfers), "nobody keeps it")
        assert sorted(transfer._given for transfer in transfers) == [0, 0, 2]
        assert all(at_once(*[functools.partial(average, ft, model) for ft, model in zip(crew.members, models, strict=True)]))


def test_what_cannot_be_transferred_is_refused_though_nobody_else_is_there() -> None:
    best = Best()
    best.value = {1, 2}
    text = r"state\['extra'\]\[0\]\['best'\]: a value of type set cannot be transferred"
    with FTLib.init(framework="memory", config={}, agent="thread") as ft, pytest.raises(ConfigError, match=text):
        ft.register_state(model=nn.Linear(2, 1), extra=best)


@pytest.mark.parametrize(
    ("recovery", "value", "text"),
    [
        ("live", object(), "a value of type object cannot be transferred"),
        ("wait", object(), "a value of type object cannot be transferred"),
        ("wait", RuntimeError("it is closed"), "RuntimeError: it is closed"),
    ],
)
def test_a_state_that_cannot_be_transferred_any_more_ends_the_joiner_alone(
    monkeypatch: pytest.MonkeyPatch, recovery: str, value: object, text: str
) -> None:
    monkeypatch.setattr(requests, "_PASSING", 0.6)
    with founders(1, recovery=recovery) as crew:
        [alone] = crew.members
        model, best = nn.Linear(2, 1), Best()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        alone.register_state(model=model, optimizer=optimizer, extra=best, apply=optimizer.step)
        best.value = value
        thread = training(alone, model)
        joiner = crew.init()
        other = nn.Linear(2, 1)
        moved = torch.optim.SGD(other.parameters(), lr=0.1)
        joiner.register_state(model=other, optimizer=moved, extra=Best(), apply=moved.step)
        with pytest.raises(ConfigError, match=f"cannot be given to this worker: .*{text}"):
            average(joiner, other)
        joiner.close()
        eventually(lambda: alone.size == 1, "it goes on by itself")
        alone.close()
        thread.join()


@pytest.mark.parametrize(
    "want",
    [OSError(errno.EMFILE, "Too many open files"), RuntimeError("can't start new thread"), MemoryError("no room")],
    ids=["descriptors", "threads", "memory"],
)
def test_a_donor_that_is_short_of_something_for_a_moment_gives_its_state_later(want: Exception) -> None:
    with founders(1, recovery="wait") as crew:
        [alone] = crew.members
        model, best = nn.Linear(2, 1), Short(want)
        alone.register_state(model=model, extra=best)
        best.left = 2
        thread = training(alone, model)
        joiner = crew.init()
        other, got = nn.Linear(2, 1), Best()
        joiner.register_state(model=other, extra=got)
        assert average(joiner, other)
        assert (best.left, got.value) == (0, "here")
        joiner.close()
        alone.close()
        thread.join()


class Short(Best):
    """Its state cannot be had a few times."""

    def __init__(self, want: Exception) -> None:
        super().__init__()
        self.value, self.want, self.left = "here", want, 0

    def state_dict(self) -> dict[str, object]:
        if self.left:
            self.left -= 1
            raise self.want
        return super().state_dict()


def test_what_a_state_lacks_for_long_is_no_passing_shortage() -> None:
    threads = SimpleNamespace(now=lambda: now, lock=threading.Lock)
    failures, now, torn = Failures(threads), 0.0, RuntimeError("it is\nclosed")  # type: ignore[arg-type]
    for passes in (0.0, 2.9, 100.0, 102.9):
        now = passes
        assert failures.refusal(torn) is None
    now = 103.0
    assert "RuntimeError: it is closed" in str(failures.refusal(torn))
    assert failures.refusal(MemoryError()) is None and failures.refusal(FTLibError()) is None
    assert failures.refusal(ZeroDivisionError()) and Failures(threads).refusal(ConfigError("no"))  # type: ignore[arg-type]


def test_a_model_without_shapes_is_refused_with_a_remedy() -> None:
    text = "it has no shape yet; run a forward pass before register_state"
    with company(1) as crew, pytest.raises(ConfigError, match=text):
        crew.members[0].register_state(model=torch.nn.LazyLinear(3))


def test_another_optimizer_is_refused_before_anything_is_taken_over() -> None:
    """PyTorch takes over its settings, and fails in the first step."""

    def registered(kind: type[torch.optim.Optimizer], bias: float) -> tuple[Registered, nn.Linear]:
        model = nn.Linear(2, 1)
        nn.init.constant_(model.bias, bias)
        return Registered({"model": model, "optimizer": kind(model.parameters(), lr=0.1)}), model

    here, model = registered(torch.optim.SGD, 1.0)
    there, _ = registered(torch.optim.Adam, 2.0)
    with pytest.raises(ConfigError, match=r"another one than this worker's SGD \(.*betas.* instead of .*momentum"):
        here.load(there.tree(0))
    assert model.bias == 1.0


def test_an_optimizer_of_another_version_or_with_a_scheduler_is_none_other() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tree = Registered({"optimizer": optimizer}).tree(0)
    (group,) = tree["optimizer"][0]["param_groups"]
    del group["fused"]
    Registered({"optimizer": optimizer}).load(tree)
    group |= {"fused": None, "initial_lr": 0.3, "a_later_versions": 1}
    Registered({"optimizer": optimizer}).load(tree)
    assert optimizer.param_groups[0]["initial_lr"] == 0.3


def test_who_asks_for_the_initial_state_gets_it_as_soon_as_it_is_registered() -> None:
    """It waits at the donor, for a while: founders register at about the same time."""
    plane = Plane("a" * 16)
    transfer = Transfer(plane, TIMEOUT, TIMEOUT)
    answers: list[bytes] = []
    asking = in_thread(lambda: answers.append(b"".join(transfer.source({"founding": "1"}))))
    eventually(lambda: plane.changed._waiters or not asking.is_alive(), "it waits there")  # type: ignore[attr-defined]
    with plane.changed:
        transfer._snapshot, transfer._sends = b"state", True
        plane.changed.notify_all()
    asking.join(TIMEOUT)
    assert answers == [b"state"]
