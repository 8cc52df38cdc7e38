"""What the processes of one replica agree on about samples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlib.data.drawer import Drawer
from ftlib.data.elastic_sampler import ElasticSampler
from ftlib.data.mates import Ahead, Drawing, agreed_ahead, pack_ahead, read_ahead
from ftlib.data.sampling import Share

AHEAD = st.lists(st.booleans(), max_size=6).map(tuple)
AHEADS = st.integers(0, 4)
DRAWING = st.builds(
    Share,
    samples=st.sampled_from([0, 3]),
    ahead=AHEADS,
    dropped=st.sampled_from([0, 0, 1]),
    data_epoch=st.sampled_from([1, 2]),
    end=st.sampled_from([0, 7]),
)
SHARES = st.one_of(DRAWING, st.builds(Share, ahead=AHEADS))
SAID = st.lists(st.builds(Drawing, AHEAD, st.tuples(SHARES, SHARES)), min_size=1, max_size=3)
NOBODY = st.lists(st.one_of(st.builds(Drawing, AHEAD, st.tuples(SHARES, SHARES)), st.builds(Drawing, AHEAD)), min_size=1)


@given(NOBODY, st.randoms())
def test_all_come_to_the_same(said: list[Drawing], luck: object) -> None:
    """Whoever looks, in whatever order, and also where one has agreed before and says what was agreed on."""
    agreed = Drawing.agreed(said, 0)
    assert Drawing.agreed(said[::-1], 0) == agreed
    for index in range(len(said)):
        again = [*said]
        again[index] = agreed
        assert Drawing.agreed(again, 0) == agreed
    assert Drawing.unpack(agreed.pack()) == agreed


@given(SAID)
def test_a_replica_uses_up_what_all_of_its_processes_do(said: list[Drawing]) -> None:
    agreed = Drawing.agreed(said, 1)
    for place, share in enumerate(agreed.shares):
        uses = {(each.shares[place].samples, each.shares[place].dropped, each.shares[place].data_epoch) for each in said}
        if len(uses) > 1:
            assert (share.samples, share.dropped) == (0, 0)
            assert share.data_epoch == max(each.shares[place].data_epoch for each in said)
        assert share.ahead == max(each.shares[place].ahead for each in said)
    theirs = [{share.samples for share in column} for column in zip(*(each.shares for each in said), strict=True)]
    assert not (Drawing.differ(said) and all(uses == {0} for uses in theirs))


@given(st.lists(AHEAD, min_size=1, max_size=3))
def test_nothing_counts_from_the_first_difference_on(said: list[Ahead]) -> None:
    agreed = agreed_ahead(said)
    assert len(agreed) == max(map(len, said))
    for each in said:
        first = next((index for index, (one, other) in enumerate(zip(each, agreed, strict=False)) if one != other), len(agreed))
        assert not any(agreed[first:])


@given(AHEAD)
def test_packed(ahead: Ahead) -> None:
    assert read_ahead(pack_ahead(ahead)) == ahead


@pytest.mark.parametrize("data", [b"", b"\1\0\0", b"\1\0\0\2", b"\1\0\0\1\1", "text"])
def test_nonsense_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="drawn ahead"):
        read_ahead(data)


@pytest.mark.parametrize("data", [b"\xc1", b"\x92\xc4\x03\0\0\0\x91\x91\1"])
def test_a_drawing_that_is_not_one_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"not readable|wrong shape|unpack"):
        Drawing.unpack(data)


def test_one_that_has_drawn_less_gets_what_its_mate_has_drawn() -> None:
    """Both deal anew after the call, and hand out the same afterwards."""
    far, near = process(), process()
    for mate, count in ((far, 4), (near, 1)):
        assert [mate.draw() for _ in range(count)] == [((3 * index, 3 * index + 3),) for index in range(count)]
    shares = [mate.begin(1) for mate in (far, near)]
    said = [Drawing(mate.ahead(), (share,)) for mate, share in zip((far, near), shares, strict=True)]
    agreed = Drawing.agreed(said, 0)
    for mate in (far, near):
        mate.level(agreed.ahead)
        mate.finished({"r": agreed.shares[0], "late": Share(data_epoch=1, deal=shares[0].deal)}, 1)
    assert far.state is not None and near.state is not None and far.state.same(near.state)
    assert far.ahead() == near.ahead() == (True,) * 3
    theirs = [far.draw() for _ in range(5)]
    own = [near.draw() for _ in range(8)]
    assert own == [((3, 6),), ((6, 9),), ((9, 12),), *theirs]


def test_who_was_at_another_batch_gives_it_back() -> None:
    """One of two has got a filler for the call, the other one a batch: it is drawn again by both."""
    real, filler = process(), process()
    real.draw()
    filler._queue.items.append(())
    shares = [mate.begin(1) for mate in (real, filler)]
    said = [Drawing(mate.ahead(), (share,)) for mate, share in zip((real, filler), shares, strict=True)]
    assert Drawing.differ(said)
    agreed = Drawing.agreed(said, 0)
    for mate in (real, filler):
        mate.level(agreed.ahead)
        mate.finished({}, 0)  # as nobody draws at all
    assert real.draw() == filler.draw() == ((0, 3),)


def test_the_newest_epoch_that_one_of_them_has_begun_is_that_of_all() -> None:
    """All but one decline the call, and have begun no epoch; afterwards all deal alike."""
    first, second, other = (process(*names, began=False) for names in (("r", "s"), ("r", "s"), ("s", "r")))
    first.start(0)
    assert first.draw() == ((0, 3),)
    shares = [first.begin(1), second.begin(0), other.begin(0)]
    said = [Drawing(first.ahead(), (shares[0], shares[2])), Drawing(second.ahead(), (shares[1], shares[2]))]
    agreed = Drawing.agreed(said, 0)
    for each in (first, second, other):
        each.level(agreed.ahead if each is not other else ())
        each.finished(dict(zip("rs", agreed.shares, strict=True)), 0)
    for each in (second, other):
        each.start(0)
    states = [each.state for each in (first, second, other)]
    assert states[0] is not None
    assert all(state is not None and state.same(states[0]) for state in states)
    assert first.draw() == second.draw() == ((0, 3),)
    assert other.draw() == ()  # it takes part in the dealing from its next call on, as any that were in the epoch before


@pytest.mark.parametrize("codes", [(255, 1), (255, 2, 1), (0, 254, 1), (100, 101), (200, 45)])
def test_the_newest_epoch_by_its_code(codes: tuple[int, ...]) -> None:
    """Epoch -1 has the code 255, epoch 0 the code 1; 0 is none."""
    said = [Drawing((), (Share(data_epoch=code, deal=code, samples=3 * (code > 0)),)) for code in codes]
    newest = {(255, 1): 1, (255, 2, 1): 2, (0, 254, 1): 1, (100, 101): 101, (200, 45): 45}[codes]
    assert Drawing.agreed(said, 0).shares == Drawing.agreed(said[::-1], 0).shares == (Share(data_epoch=newest, deal=newest),)


def test_who_adopts_a_call_without_its_batch_has_drawn_nothing_beyond_it() -> None:
    """The others know that this replica was not at one batch in the call, and its mate was at none: it does not know it yet."""
    real, filler = process(), process()
    assert [real.draw(), real.draw()] == [((0, 3),), ((3, 6),)]
    filler._queue.items.extend([(), ()])
    shares = [mate.begin(1) for mate in (real, filler)]
    agreed = Drawing.agreed([Drawing(real.ahead(), (shares[0],)), Drawing(filler.ahead(), (shares[1],))], 0)
    own = agreed.shares[0]
    assert real.ahead(own) == (False,)
    again = Drawing.agreed([Drawing(real.ahead(own), agreed.shares), Drawing(filler.ahead(), (shares[1],))], 0)
    assert again == agreed
    for mate in (real, filler):
        mate.level(again.ahead)
        mate.finished({"r": own}, 0)
    assert [real.draw(), real.draw()] == [filler.draw(), filler.draw()] == [((0, 3),), ((3, 6),)]


def test_a_loop_that_is_begun_again_draws_the_same_again() -> None:
    """However far each of them had drawn."""
    far, near = process(), process()
    for mate, count in ((far, 3), (near, 1)):
        for _ in range(count):
            mate.draw()
        mate.start(0)
    assert [far.draw(), far.draw()] == [near.draw(), near.draw()] == [((0, 3),), ((3, 6),)]
    assert far.begin(1) == near.begin(1)


def process(name: str = "r", *others: str, began: bool = True) -> Drawer:
    """One of several that draw for replica ``name``; ``others``: the job's other ones. ``began``: whether it is in a loop."""
    drawer = ElasticSampler(range(60), batch_size=3, shuffle=False)._drawer
    drawer.bind(name, together=True)
    drawer.found(sorted([name, *others]))
    if began:
        drawer.start(0)
    return drawer
