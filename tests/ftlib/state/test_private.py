"""Private state in the tree of what is registered; founders that promise to be equal."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ftlib import ConfigError, ElasticSampler, FTLib, LocalSGD
from ftlib.state.codec import decode, snapshot
from ftlib.state.digests import difference, digests, pack, unpack
from ftlib.state.private import Private
from ftlib.state.registry import Registered
from ftlib.state.snapshot import Backup, Blank
from tests.harness.company import Company, at_once


def built(seed: int, source: str = "donor") -> tuple[Registered, nn.Linear, torch.optim.Adam]:
    torch.manual_seed(seed)
    shared, own = nn.Linear(2, 2), nn.Linear(3, 3)
    inner = torch.optim.Adam(own.parameters())
    own(torch.ones(3)).sum().backward()
    inner.step()
    private = Private.of({"model": own, "inner": [inner]}, source)
    return Registered({"model": shared}, private=private), own, inner


def test_what_another_member_gets_has_the_private_state() -> None:
    here, own, inner = built(1)
    there, others, _ = built(2)
    tree = decode(snapshot(there.tree(3)))
    here.load(tree)
    assert torch.equal(own.weight, others.weight)
    assert inner.state_dict()["state"][0]["step"] == 1
    assert "private" not in here.shared(3)


def test_fresh_private_state_goes_nowhere_but_comes_back() -> None:
    here, own, _ = built(1, "fresh")
    there, _, _ = built(2, "fresh")
    assert "private" not in there.tree(3)
    before = own.weight.detach().clone()
    here.load(there.tree(3))
    assert torch.equal(own.weight, before)
    kept = Backup().keep(here, 0)
    with torch.no_grad():
        own.weight.zero_()
    kept.restore()
    assert torch.equal(own.weight, before), "as an execute that failed leaves it"


def test_what_is_registered_otherwise_is_told() -> None:
    here, _, _ = built(1)
    there = Registered({"model": nn.Linear(2, 2)}, private=Private.of({"model": nn.Linear(3, 3)}))
    with pytest.raises(ConfigError, match=r"registered private=\{model: 1, inner: 1\}, the donor private=\{model: 1\}"):
        here.load(there.tree(0))
    assert here.shape() != there.shape()
    with pytest.raises(ConfigError, match=r"the donor private=\{\}"):
        here.load(Registered({"model": nn.Linear(2, 2)}).tree(0))


def test_another_inner_optimizer_is_refused_before_anything_is_loaded() -> None:
    here, own, _ = built(1)
    before = own.weight.detach().clone()
    tree = here.tree(0)
    tree["private"] = {"model": [nn.Linear(3, 3).state_dict()], "inner": [torch.optim.Rprop(own.parameters()).state_dict()]}
    with pytest.raises(ConfigError, match="the job's is another one than this worker's Adam"):
        here.load(tree)
    assert torch.equal(own.weight, before)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"private": 3}, "private private=int has no state_dict"),
        ({"private": {"x": [nn.Linear(1, 1), 4]}}, "private x=int has no state_dict"),
        ({"private": {1: nn.Linear(1, 1)}}, "its keys are names"),
        ({"private": "other"}, "give objects, or 'fresh'"),
        ({"private": nn.Linear(1, 1), "private_from": "me"}, "give 'donor' or 'fresh'"),
        ({"private": ElasticSampler(range(3), batch_size=1)}, "give it as sampler="),
    ],
)
def test_bad_input_is_named(given: dict[str, Any], text: str) -> None:
    with FTLib.init(config={}, framework="memory") as ft, pytest.raises(ConfigError, match=text):
        ft.register_state(model=nn.Linear(1, 1), **given)


def test_nothing_is_both_shared_and_private() -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(ConfigError, match="the same Linear was given as model= and as private="):
        Registered({"model": model}, private=Private.of([model]))
    with pytest.raises(ConfigError, match="besides private="):
        Registered({}, private=Private.of([model]))


def test_one_object_a_list_or_names() -> None:
    model, inner = nn.Linear(1, 1), torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    dictionary = nn.ModuleDict({"a": model})  # a module, though it has keys
    for given, names in ((model, {"private": 1}), ([model, inner], {"private": 2}), (dictionary, {"private": 1})):
        private = Private.of(given)
        assert private is not None
        assert {name: len(states) for name, states in private.tree().items()} == names
    found = Private.of({"a": inner, "b": [model]})
    assert found is not None
    assert found.first_optimizer is inner
    assert Private.of(None) is None


def averaging(ft: FTLib, *widths: int, steps: int = 0) -> tuple[list[LocalSGD], list[torch.optim.Adam]]:
    """Models that train locally, as the two of a program with a generator and a discriminator."""
    models = [nn.Linear(width, width) for width in widths]
    inner = [torch.optim.Adam(model.parameters()) for model in models]
    found = [LocalSGD(ft, model, sync_every=100, inner=each) for model, each in zip(models, inner, strict=True)]
    ft.register_state(model=found)
    for local, model, each in zip(found, models, inner, strict=True):
        with local:
            for _ in range(steps):
                model(torch.ones(model.in_features)).sum().backward()
                each.step()
    return found, inner


def test_each_of_several_models_that_train_locally_has_its_private_state(tmp_path: Path) -> None:
    with FTLib.init(config={}, framework="memory") as ft:
        _, there = averaging(ft, 2, 3, steps=4)
        ft.save(tmp_path)
    with FTLib.init(config={}, framework="memory") as ft:
        locals_, here = averaging(ft, 2, 3)
        assert ft.load(tmp_path) is not None
        for one, other in zip(there, here, strict=True):
            assert one.state_dict()["state"][0]["step"] == other.state_dict()["state"][0]["step"] == 4
            assert torch.equal(one.state_dict()["state"][0]["exp_avg"], other.state_dict()["state"][0]["exp_avg"])
        registered = ft.registered
        assert registered is not None and registered.private is not None
        assert list(registered.private.tree()) == [f"{at}.{name}" for at in (0, 1) for name in ("place", "remainder", "inner")]
        ft.register_state(model=locals_[0], private={"mine": here[1]})
        registered = ft.registered
        assert registered is not None and registered.private is not None
        assert list(registered.private.tree()) == ["place", "remainder", "inner", "mine"], "a single one's names stay"
        with pytest.raises(ConfigError, match="the name 'inner' is taken by the Adam of what is registered"):
            ft.register_state(model=locals_[0], private={"inner": here[1]})


def test_buffers_that_were_prepared_are_filled() -> None:
    tensors = {"one": torch.arange(4.0), "other": torch.ones(2, 3, dtype=torch.int64).t(), "none": torch.zeros(0)}
    backup = Backup()
    assert not backup.prepared(tensors)
    backup.prepare({path: Blank.of(tensor) for path, tensor in tensors.items()})
    assert backup.prepared(tensors)
    before = {path: buffer.data_ptr() for path, buffer in backup._buffers.items()}
    copies = backup.copy(tensors)
    assert all(torch.equal(copies[path], tensor) for path, tensor in tensors.items())
    assert {path: buffer.data_ptr() for path, buffer in copies.items()} == before
    assert not backup.prepared({"one": torch.zeros(5)})
    assert not backup.prepared({"other": torch.ones(3, 2, dtype=torch.int64)}), "it would have other strides"
    odd = {"odd": torch.empty_strided((3, 2, 1, 1), (1, 3, 6, 12))}
    backup.copy(odd)
    assert backup.prepared(odd), "strides of a size of 1 do not matter"


def test_digests_say_where_states_differ() -> None:
    one = {"a": [torch.zeros(3)], "b": torch.ones(2, 2).t(), "n": 3}
    assert difference(digests(one), unpack(pack(digests({"a": [torch.zeros(3)], "b": torch.ones(2, 2), "n": 3})))) == ""
    assert difference(digests(one), digests({**one, "b": torch.zeros(2, 2)})) == "state['b']"
    assert difference(digests(one), digests({**one, "n": 4})) == "a number, a text or the shape of a tensor"
    assert difference(digests(one), digests({**one, "c": torch.zeros(1)})) == "state['c']"
    for damaged in (b"\xc1", b"\x01", b"\x81\x01\x02"):
        with pytest.raises(ValueError, match="digests"):
            unpack(damaged)


# --- founders ----------------------------------------------------------------------------------------------------------


def registers(ft: FTLib, model: nn.Linear, **more: Any) -> nn.Linear | ConfigError:
    own = nn.Linear(2, 2)
    with torch.no_grad():
        own.weight.fill_(ft.rank)
    try:
        ft.register_state(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), private=own, **more)
    except ConfigError as error:
        return error
    assert own.weight[0, 0].item() == (ft.rank if more.get("sync") is False else 0.0), "private state is compared with nobody's"
    return model


def linear(seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(4, 4)


def founded(seeds: list[int], *given: dict[str, Any]) -> list[nn.Linear | ConfigError]:
    crew = Company(len(seeds))
    try:
        models = [linear(seed) for seed in seeds]  # here, as the seed is that of all threads
        each = zip(crew.members, models, given, strict=True)
        found = at_once(*[functools.partial(registers, ft, model, **more) for ft, model, more in each])
        sent = [ft.metrics()["state_bytes"] for ft in crew.members]
        assert not any(sent) or all(more.get("sync", True) for more in given[:1])
        return found
    finally:
        at_once(*[ft.close for ft in crew.members])


def test_founders_that_are_equal_send_nothing() -> None:
    one, two, three = founded([5, 5, 5], *[{"sync": False}] * 3)
    assert isinstance(one, nn.Linear)
    assert isinstance(two, nn.Linear)
    assert isinstance(three, nn.Linear)
    assert torch.equal(one.weight, two.weight)


def test_who_differs_is_told_by_name_and_where() -> None:
    one, two, three = founded([5, 6, 5], *[{"sync": False}] * 3)
    assert isinstance(one, nn.Linear)
    assert isinstance(three, nn.Linear)
    assert isinstance(two, ConfigError)
    text = str(two)
    assert text.startswith("sync=False: the initial state of ")
    assert "(state['model'][0]['weight']): build the same at every founder, from one seed, or leave sync=False out" in text


@pytest.mark.parametrize("promises", [True, False])
def test_all_founders_promise_or_none(*, promises: bool) -> None:
    one, two = founded([5, 5], {"sync": promises}, {"sync": not promises})
    assert isinstance(one, nn.Linear)
    assert isinstance(two, ConfigError)
    assert f"registered with sync={promises} there, and with sync={not promises} here: pass the same sync=" in str(two)
