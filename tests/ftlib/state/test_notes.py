"""What arrives is what was there: modules that convert states of older classes, optimizers with precision of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ftlib import ConfigError, FTLib, LocalSGD
from ftlib.common.threads import Threads
from ftlib.recovery.donor.private_copies import PrivateCopy
from ftlib.recovery.layout.requests import Failures
from ftlib.state.codec import decode, snapshot
from ftlib.state.private import Private
from ftlib.state.registry import Registered
from ftlib.state.snapshot import Backup, Before
from tests.ftlib.recovery.test_manifest import give
from tests.harness.company import at_once, company


class Turned(nn.Module):
    """Its first release kept the transpose; it converts such a state as modules of torch do."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.register_buffer("scale", torch.randn(3, 3))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any) -> None:
        if (local_metadata.get("version") or 1) < 2:
            for name in {"weight", "scale"} & {key.removeprefix(prefix) for key in state_dict}:
                state_dict[prefix + name] = state_dict[prefix + name].t().clone()
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


def arrived(registered: Registered) -> Any:
    """Its state as another member gets it."""
    return decode(snapshot(registered.tree(0)))


def alike(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def in_a_model() -> tuple[nn.Module, Registered]:
    model = nn.Sequential(nn.Linear(3, 3), Turned())
    return model, Registered({"model": [nn.Linear(1, 1), model]})


def in_private_state() -> tuple[nn.Module, Registered]:
    model = nn.Sequential(Turned())
    return model, Registered({"model": nn.Linear(1, 1)}, private=Private.of({"a": [nn.Linear(1, 1), model]}))


def in_callables() -> tuple[nn.Module, Registered]:
    model = nn.Sequential(Turned())
    return model, Registered(
        {}, lambda: {"best": (1, {"model": model.state_dict()})}, lambda tree: model.load_state_dict(tree["best"][1]["model"])
    )


PLACES = pytest.mark.parametrize("made", [in_a_model, in_private_state, in_callables])


@PLACES
def test_a_module_converts_no_state_of_its_own_release(made: Callable[[], tuple[nn.Module, Registered]]) -> None:
    (there, donor), (here, joiner) = made(), made()
    joiner.load(arrived(donor))
    assert alike(there, here)


@PLACES
def test_nor_one_that_does_not_say_its_release(made: Callable[[], tuple[nn.Module, Registered]]) -> None:
    """As in checkpoints of older releases of this library."""
    (there, donor), (here, joiner) = made(), made()
    tree = arrived(donor)
    del tree["notes"]
    joiner.load(tree)
    assert alike(there, here)


@PLACES
def test_it_converts_one_of_an_older_release(
    made: Callable[[], tuple[nn.Module, Registered]], monkeypatch: pytest.MonkeyPatch
) -> None:
    there, donor = made()
    monkeypatch.setattr(Turned, "_version", 1)
    tree = arrived(donor)
    monkeypatch.undo()
    here, joiner = made()
    joiner.load(tree)
    [old], [new] = ([each for each in model.modules() if isinstance(each, Turned)] for model in (there, here))
    assert torch.equal(old.weight.t(), new.weight) and torch.equal(old.scale.t(), new.scale)


def test_a_step_that_is_undone_converts_nothing() -> None:
    model, registered = in_a_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    kept = Backup().keep(registered, 0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    kept.restore()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_nor_does_a_recovery_beside_the_training() -> None:
    (there, donor), (here, joiner) = in_a_model(), in_a_model()
    give(donor, joiner)
    assert alike(there, here)


def test_nor_a_copy_of_private_state() -> None:
    (there, donor), (here, joiner) = in_private_state(), in_private_state()
    copy = PrivateCopy()
    copy.make(donor, 1, Failures(Threads()))
    joiner.load(decode(snapshot(donor.tree(0, private=copy.part))))
    assert alike(there, here)


def test_notes_that_are_none_are_refused() -> None:
    _, registered = in_a_model()
    tree = arrived(registered)
    for wrong in (3, {"versions": 3, "kept": []}, {"versions": [3], "kept": []}, {"versions": [], "kept": [[1]]}):
        with pytest.raises(ConfigError, match="the notes beside the state are not readable"):
            registered.load({**tree, "notes": {"shared": wrong}})


def test_founders_and_local_training_begin_alike() -> None:
    def build(ft: FTLib) -> nn.Module:
        model = nn.Sequential(Turned(), nn.BatchNorm1d(3))
        ft.register_state(model=LocalSGD(ft, model, sync_every=2))
        return model

    with company(2) as made:
        one, other = at_once(*[functools.partial(build, ft) for ft in made.members])
        assert torch.equal(one[0].scale, other[0].scale), "the buffers, which are private"


# --- optimizers --------------------------------------------------------------------------------------------------------


class Momentum(torch.optim.Optimizer):
    """It keeps its momentum in float32, whatever the weights are, and a count as integers."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state["momentum"] = torch.zeros_like(parameter, dtype=torch.float32)
                state["total"] = torch.zeros((), dtype=torch.float32)
                state["seen"] = torch.zeros_like(parameter, dtype=torch.int64)
            state["momentum"].mul_(0.9).add_(parameter.grad.float())
            state["total"] += parameter.grad.float().sum()
            state["seen"] += 1
            parameter.sub_((0.01 * state["momentum"]).to(parameter.dtype))


Roles = tuple[nn.Module, torch.optim.Optimizer, Registered]


def shared(dtype: torch.dtype = torch.bfloat16) -> Roles:
    model = nn.Linear(4, 4).to(dtype)
    optimizer = Momentum(model.parameters())
    return model, optimizer, Registered({"model": model, "optimizer": optimizer})


def private() -> Roles:
    model = nn.Linear(4, 4).to(torch.bfloat16)
    optimizer = Momentum(model.parameters())
    return model, optimizer, Registered({"model": nn.Linear(1, 1)}, private=Private.of({"inner": optimizer}))


def trained(roles: Roles) -> Roles:
    model, optimizer, _ = roles
    for _ in range(3):
        model(torch.randn(2, 4, dtype=next(model.parameters()).dtype)).float().pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return roles


def kept(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [value for state in optimizer.state.values() for _, value in sorted(state.items())]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(a.dtype is b.dtype and torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("made", [shared, private])
def test_what_an_optimizer_keeps_in_another_dtype_arrives_in_it(made: Callable[[], Roles]) -> None:
    (_, there, donor), (_, here, joiner) = trained(made()), made()
    joiner.load(arrived(donor))
    assert same(kept(there), kept(here))


def test_so_it_does_beside_the_training() -> None:
    (_, there, donor), (_, here, joiner) = trained(shared()), shared()
    give(donor, joiner)
    assert same(kept(there), kept(here))


def test_and_where_a_step_is_undone() -> None:
    _, optimizer, registered = trained(shared())
    before = [value.clone() for value in kept(optimizer)]
    backup = Backup().keep(registered, 0)
    trained((_, optimizer, registered))
    backup.restore()
    assert same(kept(optimizer), before)


def test_a_program_that_goes_on_in_another_precision_gets_what_torch_makes_of_it() -> None:
    (_, _, donor), (model, here, joiner) = trained(shared()), shared(torch.float64)
    joiner.load(arrived(donor))
    assert {value.dtype for value in kept(here)} == {torch.float64}
    trained((model, here, joiner))


class Frugal(torch.optim.SGD):
    """Its momentum is written in float32, and kept in bfloat16."""

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return {**state, "state": {key: {"momentum": value["momentum"].float()} for key, value in state["state"].items()}}


def test_what_is_only_written_in_another_dtype_is_left_as_the_optimizer_loads_it() -> None:
    parameter = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    one, other = Frugal([parameter]), Frugal([parameter])
    one.state[parameter]["momentum"] = torch.ones(3, dtype=torch.bfloat16)
    Registered({"optimizer": other}).load(arrived(Registered({"optimizer": one})))
    assert other.state[parameter]["momentum"].dtype is torch.bfloat16


def refused(state: object) -> str:
    """What is said of a registered state that cannot be sent."""
    registered = Registered({}, lambda: state, lambda tree: None)
    with pytest.raises(ConfigError) as error:
        snapshot(registered.tree(0))
    return str(error.value)


def test_a_state_that_contains_itself_is_refused_at_once() -> None:
    circle: dict[str, Any] = {}
    circle.update(one=circle, other=circle)  # 2**64 paths, each deeper than what can be sent
    assert "state['custom']['one']['one']" in (text := refused(circle)) and "nested deeper than 64 levels" in text


@pytest.mark.parametrize("key", [1.5, 2**70, (1, 2)])
def test_a_key_that_cannot_be_sent_is_named_where_it_is(key: object) -> None:
    """Though a module's state lies below it, whose versions are noted by its path."""
    assert refused({key: nn.BatchNorm1d(3).state_dict()}).startswith("state['custom']: ")


def test_so_it_is_in_private_state() -> None:
    tree = Registered({"extra": nn.Linear(1, 1)}, private=Private({"mine": nn.BatchNorm1d(3)}, travels=True)).tree(0)
    assert [*tree][-2:] == ["private", "notes"] and set(tree["notes"]) == {"shared", "private"}


def loaded(donor: Registered, joiner: Registered) -> None:
    joiner.load(arrived(donor))


def undone(donor: Registered, joiner: Registered) -> None:
    """A step of ``execute`` is, after a state like the donor's."""
    loaded(donor, joiner)
    kept = Backup().keep(joiner, 0)
    for optimizer in joiner.of(torch.optim.Optimizer).values():
        optimizer.step()
    kept.restore()


def put_back(donor: Registered, joiner: Registered) -> None:
    """A checkpoint is refused, after a state like the donor's."""
    loaded(donor, joiner)
    Before(joiner).restore()


def by_itself(model: nn.Module, optimizer: torch.optim.Optimizer) -> Registered:
    return Registered({"model": model, "optimizer": optimizer})


def by_its_functions(model: nn.Module, optimizer: torch.optim.Optimizer) -> Registered:
    return Registered({"model": model}, optimizer.state_dict, optimizer.load_state_dict)


@pytest.mark.parametrize("how", [by_itself, by_its_functions])
@pytest.mark.parametrize("moved", [loaded, undone, put_back, give])
@pytest.mark.parametrize(("dtype", "fused"), [(torch.float32, True), (torch.bfloat16, False)], ids=["fused", "bfloat16"])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_what_an_optimizer_keeps_has_the_strides_of_its_parameters(
    kind: Any,
    dtype: torch.dtype,
    fused: bool,
    moved: Callable[[Registered, Registered], object],
    how: Callable[[nn.Module, torch.optim.Optimizer], Registered],
) -> None:
    """With others torch's fused steps take the wrong elements, and others round differently: here, and not at the donor."""
    more = {"momentum": 0.9} if kind is torch.optim.SGD else {}

    def made(seed: int) -> tuple[nn.Module, torch.optim.Optimizer, Registered]:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.Conv2d(6, 2, 3)).to(dtype=dtype, memory_format=torch.channels_last)
        model.register_parameter("turned", nn.Parameter(torch.randn(5, 7, dtype=dtype).t()))
        optimizer = kind(model.parameters(), lr=0.05, fused=fused, **more)
        return model, optimizer, how(model, optimizer)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
        drawn = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter).copy_(torch.randn(parameter.shape, generator=drawn))
        optimizer.step()

    (there, ours, donor), (here, theirs, joiner) = made(0), made(1)
    for seed in range(3):
        step(there, ours, seed)
        step(here, theirs, 10 + seed)
    moved(donor, joiner)
    for seed in range(3, 6):
        step(there, ours, seed)
        step(here, theirs, seed)
    assert alike(there, here)
