from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from ftlib import ConfigError
from ftlib.recovery.layout import manifest as manifests
from ftlib.recovery.layout.flat_state import FlatState
from ftlib.recovery.layout.manifest import Manifest, prepare, refresh, split
from ftlib.state.codec import decode, snapshot
from ftlib.state.live import stepping
from ftlib.state.registry import Registered

Roles = dict[str, Any]


def parts(width: int = 8, optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW, seed: int = 0) -> Roles:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, width), nn.Linear(width, 1))
    adam = optimizer(model.parameters(), lr=0.1)
    return {"model": model, "optimizer": adam, "scheduler": torch.optim.lr_scheduler.StepLR(adam, 2)}


def train(roles: Roles, steps: int = 1, seed: int = 5) -> None:
    chance = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        roles["model"](torch.randn(6, 1, 4, 4, generator=chance)).pow(2).sum().backward()
        roles["optimizer"].step()
        roles["optimizer"].zero_grad()
        roles["scheduler"].step()


def contents(flat: FlatState) -> torch.Tensor:
    data = torch.zeros(flat.nbytes, dtype=torch.uint8)
    flat.copy_out(0, flat.nbytes, data)
    return data


def leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree, key=str) for leaf in leaves(tree[key])]
    if isinstance(tree, (list, tuple)):
        return [leaf for value in tree for leaf in leaves(value)]
    return [tree]


def alike(one: Any, two: Any) -> bool:
    """Bit for bit."""
    pairs = itertools.zip_longest(leaves(one), leaves(two))
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


def give(donor: Registered, joiner: Registered) -> FlatState:
    manifest, source = split(donor, 0)
    target = prepare(joiner, manifest.packed)
    assert target.nbytes == source.nbytes == manifest.nbytes
    target.copy_in(0, contents(source))
    return target


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.SGD])
def test_the_joiner_goes_on_where_the_donor_was(optimizer: type[torch.optim.Optimizer], channels_last: bool) -> None:
    donor, joiner = parts(optimizer=optimizer), parts(optimizer=optimizer, seed=1)
    if channels_last:
        joiner["model"].to(memory_format=torch.channels_last)
    train(donor, 3)
    give(Registered(donor), Registered(joiner))
    assert alike(Registered(donor).tree(0), Registered(joiner).tree(0))
    if not channels_last:  # whose sums have another order
        train(donor)
        train(joiner)
        assert alike(Registered(donor).tree(0), Registered(joiner).tree(0))


def test_what_is_streamed() -> None:
    roles = parts(width=2)  # among it two tensors of two elements, and one of one
    train(roles)
    manifest, flat = split(Registered(roles), 3)
    names = [name for name, _ in roles["model"].named_parameters()]
    assert sorted(spec.path for spec in manifest.streamed) == sorted(
        [f"model[0]['{name}']" for name in names]
        + [
            f"optimizer[0]['state'][{number}]['{name}']"
            for number, p in enumerate(roles["model"].parameters())
            for name in ("exp_avg", "exp_avg_sq")
            if p.numel() > 1
        ]
    )
    assert flat.paths == tuple(spec.path for spec in manifest.streamed)
    live = {id(p) for p in roles["model"].parameters()} | {
        id(value) for values in roles["optimizer"].state.values() for value in values.values()
    }
    assert all(id(tensor) in live for tensor in flat.tensors)
    assert manifest.nbytes == flat.nbytes
    assert len(manifest.packed) < 6000


def test_a_parameter_is_followed_by_what_belongs_to_it() -> None:
    roles = parts()
    train(roles)
    manifest, flat = split(Registered(roles), 0)
    state, parameters = roles["optimizer"].state, list(roles["model"].parameters())
    owners = {id(value): id(p) for p in parameters for value in state[p].values()} | {id(p): id(p) for p in parameters}
    whose = [owners[id(tensor)] for tensor in flat.tensors]
    assert len(list(itertools.groupby(whose))) == len(set(whose)) == len(parameters)
    assert all(len({whose[piece.tensor] for piece in flat.pieces(*span)}) == 1 for span in spans(manifest, flat))
    assert len(manifest.borders) == len(parameters) - 1


def spans(manifest: Manifest, flat: FlatState) -> Iterable[tuple[int, int]]:
    return itertools.pairwise([0, *manifest.borders, flat.nbytes])


class Own(torch.optim.SGD):
    """Whatever it does."""


def test_not_every_step_can_be_taken_apart() -> None:
    assert not split(Registered(parts(optimizer=Own)), 0)[0].borders
    assert not split(Registered(parts(), apply=lambda: None), 0)[0].borders
    alone = parts()
    alone["optimizer"].add_param_group({"params": [torch.zeros(3, requires_grad=True)]})
    assert not split(Registered(alone), 0)[0].borders, "this parameter is in no model"
    assert split(Registered(parts()), 0)[0].borders


def test_the_order_is_the_same_everywhere() -> None:
    roles = parts()
    train(roles)
    manifest = split(Registered(roles), 0)[0]
    turned = dict(reversed(roles.items()))
    state = roles["optimizer"].state
    for parameter in reversed(list(state)):
        state[parameter] = dict(reversed(state.pop(parameter).items()))
    assert split(Registered(turned), 9)[0].streamed == manifest.streamed
    assert split(Registered(turned), 9)[0].fingerprint == manifest.fingerprint
    given = Registered({"extra": roles["optimizer"], "model": roles["model"]})
    assert [path.split("[")[0] for path in split(given, 0)[1].paths[:3]] == ["model", "extra", "extra"]
    assert split(Registered(parts()), 0)[0].fingerprint != manifest.fingerprint


def test_tied_weights_are_streamed_once() -> None:
    def tied(*, loose: bool = False) -> Roles:
        model = parts(width=16)["model"].requires_grad_(False)
        model[4] = nn.Linear(16, 16).requires_grad_(False)
        if not loose:
            model[4].weight = model[3].weight
        return {"model": model, "optimizer": torch.optim.SGD([model[0].weight], lr=0.1)}

    donor, joiner = tied(), tied()
    manifest, flat = split(Registered(donor), 0)
    assert flat.nbytes == sum(4 * p.numel() for p in donor["model"].parameters())
    assert "model[0]['4.weight']" not in {spec.path for spec in manifest.streamed}
    with torch.no_grad():
        donor["model"][3].weight.fill_(3)
    give(Registered(donor), Registered(joiner))
    assert joiner["model"][4].weight is joiner["model"][3].weight
    assert torch.equal(joiner["model"][4].weight, torch.full((16, 16), 3.0))
    loose = tied(loose=True)
    with pytest.raises(ConfigError, match=r"model\[0\]\['4.weight'\] is tied to another tensor at the job, but not here"):
        prepare(Registered(loose), manifest.packed)
    with pytest.raises(ConfigError, match=r"'4.weight'\] is tied to model\[0\]\['3.weight'\] here, but not at the job"):
        prepare(Registered(joiner), split(Registered(loose), 0)[0].packed)


class Wrapped:
    """An optimizer that is none of torch's."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner

    def state_dict(self) -> Any:
        return self.inner.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.inner.load_state_dict(state)


class Silent(torch.optim.Optimizer):
    """One that runs no hooks."""

    def __init__(self, params: Any) -> None:
        self.param_groups = [{"params": list(params)}]
        self.state = {}  # type: ignore[assignment]

    def state_dict(self) -> Any:
        return {}

    def load_state_dict(self, state: Any) -> None:
        assert state == {}


@pytest.mark.parametrize(
    "other", [lambda model: Wrapped(torch.optim.SGD(model.parameters(), lr=1)), lambda m: Silent(m.parameters())]
)
def test_what_others_step_is_inline(other: Callable[[nn.Module], object]) -> None:
    donor, joiner = nn.Linear(3, 2), nn.Linear(3, 2)
    assert not stepping(Registered({"model": donor, "optimizer": other(donor)}))
    donor.bias.requires_grad_(False)
    manifest, _ = split(Registered({"model": donor, "optimizer": other(donor)}), 0)
    assert [spec.path for spec in manifest.streamed] == ["model[0]['bias']"], "which nobody changes"
    assert prepare(Registered({"model": joiner, "optimizer": other(joiner)}), manifest.packed).nbytes == 8
    assert torch.equal(joiner.weight, donor.weight)


def test_callables_are_inline() -> None:
    taken: list[Any] = []
    registered = Registered({}, state_dict=lambda: {"w": torch.ones(1000)}, load_state_dict=taken.append)
    manifest, flat = split(registered, 0)
    assert (flat.nbytes, manifest.nbytes, manifest.streamed) == (0, 0, ())
    assert len(manifest.packed) > 4000
    assert prepare(registered, manifest.packed).nbytes == 0
    refresh(registered, split(registered, 0)[0].packed)
    assert [tree["w"].sum() for tree in taken] == [1000, 1000]


def streamed(roles: Roles) -> list[torch.Tensor]:
    states = roles["optimizer"].state.values()
    return list(roles["model"].parameters()) + [value for state in states for value in state.values() if value.numel() > 1]


def test_a_refresh_leaves_what_is_streamed_as_it_is() -> None:
    donor, joiner = parts(), parts(seed=1)
    train(donor, 2)
    flat = give(Registered(donor), Registered(joiner))
    train(donor, 3)
    donor["optimizer"].param_groups[0]["lr"] = 0.3
    before = contents(flat)
    tensors = streamed(joiner)
    refresh(Registered(joiner), split(Registered(donor), 0)[0].packed)
    assert torch.equal(contents(flat), before)
    assert [id(tensor) for tensor in streamed(joiner)] == [id(tensor) for tensor in tensors], "the very same"
    assert {id(tensor) for tensor in flat.tensors} == {id(tensor) for tensor in tensors}
    assert joiner["optimizer"].param_groups[0]["lr"] == 0.3
    assert joiner["optimizer"].state[tensors[0]]["step"] == 5
    assert torch.equal(joiner["model"][1].running_mean, donor["model"][1].running_mean)
    assert joiner["scheduler"].last_epoch == 5
    flat.copy_in(0, contents(split(Registered(donor), 0)[1]))
    train(donor)
    train(joiner)
    assert alike(Registered(donor).tree(0), Registered(joiner).tree(0))


def test_a_refresh_needs_the_state_that_the_job_has() -> None:
    donor, joiner = parts(), parts()
    train(donor)
    with pytest.raises(ConfigError, match=r"\['state'\]\[1\]\['exp_avg'\] of float32 \(4,\) does not exist here"):
        refresh(Registered(joiner), split(Registered(donor), 0)[0].packed)


def test_state_keeps_its_own_dtype() -> None:
    """Torch casts it to the parameter's, which is not what the job has."""
    pairs = []
    for _ in range(2):
        model = nn.Linear(4, 4).to(torch.bfloat16)
        pairs.append({"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)})
    weight = pairs[0]["model"].weight
    pairs[0]["optimizer"].state[weight]["momentum_buffer"] = torch.rand(4, 4, dtype=torch.float64)
    give(Registered(pairs[0]), Registered(pairs[1]))
    assert alike(Registered(pairs[0]).tree(0), Registered(pairs[1]).tree(0))
    assert pairs[1]["optimizer"].state[pairs[1]["model"].weight]["momentum_buffer"].dtype is torch.float64


def test_big_state_is_created_in_place() -> None:
    pairs = []
    for _ in range(2):
        model = nn.Linear(600, 600)
        pairs.append({"model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=0.1)})
    pairs[0]["model"](torch.ones(1, 600)).sum().backward()
    pairs[0]["optimizer"].step()
    flat = give(Registered(pairs[0]), Registered(pairs[1]))
    assert alike(Registered(pairs[0]).tree(0), Registered(pairs[1]).tree(0))
    live = pairs[1]["optimizer"].state[pairs[1]["model"].weight]["exp_avg"]
    assert any(tensor is live for tensor in flat.tensors)


def test_state_of_another_shape_than_its_parameter_is_created() -> None:
    """As that of optimizers which keep a number for each row."""
    pairs = []
    for _ in range(2):
        model = nn.Linear(4, 3)
        pairs.append({"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)})
    pairs[0]["optimizer"].state[pairs[0]["model"].weight]["rows"] = torch.rand(3)
    give(Registered(pairs[0]), Registered(pairs[1]))
    rows = pairs[1]["optimizer"].state[pairs[1]["model"].weight]["rows"]
    assert torch.equal(rows, pairs[0]["optimizer"].state[pairs[0]["model"].weight]["rows"])


def test_state_has_the_strides_of_its_parameter_however_large() -> None:
    """As the optimizer makes it."""
    donor, joiner = ({"model": nn.Conv2d(64, 64, 9)} for _ in range(2))
    joiner["model"].to(memory_format=torch.channels_last)
    for roles in (donor, joiner):
        roles["optimizer"] = torch.optim.SGD(roles["model"].parameters(), lr=0.1, momentum=0.9)  # type: ignore[assignment]
    buffer = torch.rand_like(donor["model"].weight, requires_grad=False)
    assert buffer.nbytes > manifests._ROOM
    donor["optimizer"].state[donor["model"].weight]["momentum_buffer"] = buffer  # type: ignore[operator,index]
    give(Registered(donor), Registered(joiner))
    given = joiner["optimizer"].state[joiner["model"].weight]["momentum_buffer"]  # type: ignore[operator,index]
    assert torch.equal(given, buffer) and given.stride() == joiner["model"].weight.stride()


class Cloning(torch.optim.SGD):
    """It keeps copies of what it loads, as one does that moves its state to another device."""

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(copy.deepcopy(state_dict))


def test_what_is_streamed_is_what_the_optimizer_has() -> None:
    """Also if it has loaded something else: else nobody would see that its state is wrong."""
    pairs = []
    for _ in range(2):
        model = nn.Linear(4, 4)
        pairs.append({"model": model, "optimizer": Cloning(model.parameters(), lr=0.1, momentum=0.9)})
    buffer = torch.rand(4, 4)
    pairs[0]["optimizer"].state[pairs[0]["model"].weight]["momentum_buffer"] = buffer  # type: ignore[operator,index]
    flat = give(Registered(pairs[0]), Registered(pairs[1]))
    mine = pairs[1]["optimizer"].state[pairs[1]["model"].weight]["momentum_buffer"]  # type: ignore[operator,index]
    assert torch.equal(mine, buffer) and any(mine is tensor for tensor in flat.tensors)


def test_nothing_is_under_way_with_the_tensors_once_they_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other threads write them from then on."""
    done, roles = Mock(), parts()
    registered, packed = Registered(roles), split(Registered(roles), 0)[0].packed
    monkeypatch.setattr(registered, "places", lambda: ("gpu 0",))
    monkeypatch.setattr(registered, "load", done.load)
    monkeypatch.setattr(manifests, "settle", done.settle)
    prepare(registered, packed)
    assert [name for name, *_ in done.mock_calls] == ["load", "settle"]
    done.settle.assert_called_once_with(("gpu 0",))


def half(roles: Roles) -> Roles:
    roles["model"].half()
    return roles


def more(roles: Roles) -> Roles:
    return {**roles, "optimizer": [roles["optimizer"], torch.optim.SGD(roles["model"].parameters(), lr=0.1)]}


def grouped(roles: Roles) -> Roles:
    first, *others = roles["model"].parameters()
    return {**roles, "optimizer": torch.optim.AdamW([{"params": [first]}, {"params": others}], lr=0.1)}


def renamed(roles: Roles) -> Roles:
    return {**roles, "model": nn.ModuleDict({"inner": roles["model"]})}


def biasless(roles: Roles) -> Roles:
    roles["model"][4] = nn.Linear(8, 1, bias=False)
    return roles


def another(roles: Roles) -> Roles:
    return {**roles, "model": Wrapped(roles["model"])}


@pytest.mark.parametrize(
    ("there", "text"),
    [
        (parts(width=9), r"model\[0\]\['3.weight'\] has shape \(8, 16\) here and \(9, 16\) at the job: build the same"),
        (half(parts()), r"model\[0\]\['0.weight'\] is float32 here and float16 at the job"),
        (biasless(parts()), r"model\[0\]\['4.bias'\] exists here alone"),
        (renamed(parts()), r"model\[0\]\['inner.0.weight'\] exists at the job alone"),
        (more(parts()), "this worker registered 1 model, 1 optimizer, 1 scheduler, the donor 1 model, 2 optimizer"),
        (grouped(parts()), r"optimizer\[0\] has parameter groups of \[8\] here and of \[1, 7\] at the job"),
        ({"model": parts()["model"]}, "register the same everywhere"),
    ],
)
def test_another_program_is_named_before_anything_changes(there: Roles, text: str) -> None:
    here = parts(seed=1)
    train(here)
    before = split(Registered(here), 0)
    data = contents(before[1])
    for take in (prepare, refresh):
        with pytest.raises(ConfigError, match=text):
            take(Registered(here), split(Registered(there), 0)[0].packed)
    after = split(Registered(here), 0)
    assert after[0] == before[0]
    assert torch.equal(contents(after[1]), data)


@pytest.mark.parametrize(("here", "there"), [(torch.ones(2), "text"), ("text", torch.ones(2)), ("text", 3)])
def test_what_is_no_tensor_has_no_shape_to_compare(here: object, there: object) -> None:
    """Extra state of a module: whoever loads it says what is wrong with it."""
    manifests._compare_tensors("model[0]['extra']", here, there)


def test_another_kind_of_object_is_named() -> None:
    with pytest.raises(ConfigError, match=r"model\[0\]\['0.bias'\] is of another kind here than at the job"):
        prepare(Registered(another(parts())), split(Registered(parts()), 0)[0].packed)


def crafted(position: int, value: object) -> bytes:
    """With another hole for a tensor of the optimizer's state."""
    roles = parts()
    train(roles)
    tree: Any = decode(split(Registered(roles), 0)[0].packed)
    hole = next(hole for hole in tree["holes"] if hole[0] == "optimizer")
    hole[position] = value
    return snapshot(tree)


@pytest.mark.parametrize(
    ("packed", "text"),
    [
        (crafted(2, ["state", 99, "exp_avg"]), "is of another kind here"),
        (crafted(2, ["state", 0.5, "exp_avg"]), "it has the wrong shape"),
        (crafted(2, ["state", "exp_avg"]), "it has the wrong shape"),
        (crafted(4, [-1, 3]), "it has the wrong shape"),
        (crafted(4, [True, 3]), "it has the wrong shape"),
        (crafted(5, 99), "its tensors are not numbered"),
    ],
)
def test_holes_that_are_none_are_refused(packed: bytes, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        prepare(Registered(parts()), packed)


@pytest.mark.parametrize("packed", [b"", b"nonsense", split(Registered(parts()), 0)[0].packed[:-1]])
def test_nonsense_is_refused(packed: bytes) -> None:
    with pytest.raises(ConfigError, match=r"not readable.*run one release everywhere"):
        prepare(Registered(parts()), packed)
