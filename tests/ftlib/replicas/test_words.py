"""What follows from the words of one replica: about a result, and at the border before a newcomer's first call."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftlib.core.replicas.words import ReceivedWords, ReplicaVerdict, Word, WordFlag, read_words

HERE = WordFlag(0)


def border(call: int, said: WordFlag = HERE, *, epoch: int = 1, turn: int = 0, donor: int = 0) -> Word:
    return Word.about_border(epoch, call, said, turn, donor)


def heard(own: Word, *theirs: Word, earlier: bool = False) -> ReplicaVerdict | None:
    """The verdict at ``a``, which says ``own``, once ``b`` has said all of ``theirs``."""
    both = ReceivedWords(["a", "b"])
    both.receive("a", own)
    both.enter(own, earlier=earlier)
    for word in theirs:
        both.receive("b", word)
    return both.verdict()


def test_a_word_goes_over_the_wire() -> None:
    word = border(7, WordFlag.MIDWAY, epoch=3, turn=5, donor=9)
    ((again,), rest) = read_words(word.pack())
    assert again == word and again.turn == 5 and again.said == WordFlag.BORDER | WordFlag.MIDWAY and not rest


@given(st.lists(st.binary(max_size=40), max_size=4), st.integers(0, 200))
def test_words_arrive_in_pieces(drawn: list[bytes], cut: int) -> None:
    words = [Word(1, number, drawn=each) for number, each in enumerate(drawn)]
    data = b"".join(word.pack() for word in words)
    first, rest = read_words(data[:cut])
    second, nothing = read_words(rest + data[cut:])
    assert first + second == words and not nothing


def test_all_have_to_speak() -> None:
    assert heard(border(4)) is None
    assert heard(border(4), border(4)) == ReplicaVerdict(freeze=False, void=False, alike=True)


def test_what_all_have_drawn_is_heard_in_the_order_of_the_shards() -> None:
    said = heard(Word(1, 4, drawn=b"a"), Word(1, 4, drawn=b"b"))
    assert said is not None and said.drawn == (b"a", b"b")


def test_processes_that_begin_from_different_steps_are_apart() -> None:
    one, other, unknown = (border(1)._replace(drawn=step) for step in (b"10", b"20", b""))
    for word, apart in ((one, ()), (other, (b"10", b"20")), (unknown, ())):
        said = heard(one, word)
        assert said is not None and said.apart == apart


def test_words_about_results_and_borders_are_apart() -> None:
    assert heard(border(4), Word(1, 3)) is None, "the call before has been held, which says nothing about the border after it"
    assert heard(Word(1, 4), border(4)) is None, "nor does the border before a call say that its result is there"
    said = heard(Word(1, 4), border(4, WordFlag.MIDWAY), Word(1, 4))
    assert said is not None and not said.midway


def test_whoever_holds_a_result_has_passed_the_border_before_it() -> None:
    assert heard(border(4), Word(1, 4)) is not None


def test_what_one_says_holds_for_all() -> None:
    midway, stale = heard(border(4), border(4, WordFlag.MIDWAY)), heard(border(4), border(4, WordFlag.STALE | WordFlag.INSIDE))
    assert midway is not None and midway.midway and not midway.stale
    assert stale is not None and stale.stale and not stale.midway


def test_private_state_has_one_donor() -> None:
    apart, alike = heard(border(4, donor=1), border(4, donor=2)), heard(border(4, donor=1), border(4, donor=1))
    assert apart is not None and not apart.alike
    assert alike is not None and alike.alike


def test_who_asks_again_waits_for_words_that_were_said_since() -> None:
    """The mate's first word, about a donor that this member had not then, would fit its second one."""
    assert heard(border(4, turn=1, donor=2), border(4, donor=2)) is None
    assert heard(border(4, turn=1, donor=2), border(4, donor=2), border(4, turn=1, donor=2)) is not None


def test_a_mate_that_asks_again_has_found_them_apart() -> None:
    """Its word of the first turn may not have been looked at when that of the second one comes."""
    said = heard(border(4, donor=1), border(4, turn=1, donor=1))
    assert said is not None and not said.alike


def test_words_of_an_earlier_view() -> None:
    """A mate that has heard all of them goes on, and says nothing in the next view."""

    def later(*theirs: Word, earlier: bool = True) -> ReplicaVerdict | None:
        both = ReceivedWords(["a", "b"])
        both.receive("a", border(4, donor=1))
        both.receive("a", border(4, epoch=2, donor=1))
        both.enter(border(4, epoch=2, donor=1), earlier=earlier)
        for word in theirs:
            both.receive("b", word)
        return both.verdict()

    assert later(border(4, donor=1)) is not None
    assert later(border(4, donor=1), earlier=False) is None, "inside a call only the words of its view count"
    assert later(border(4, WordFlag.MIDWAY)) is None, "no mate has gone on after that"
    assert later(border(4, donor=2)) is None, "nor after that"
    assert later(border(3, donor=1)) is None, "nor with this call"
    assert later(border(5, donor=1)) is None


def test_one_that_still_writes_a_checkpoint_speaks_for_all() -> None:
    said = heard(Word(1, 4), Word(1, 4, WordFlag.SAVING))
    assert said == ReplicaVerdict(freeze=False, void=False, alike=True, saving=True, drawn=(b"", b""))
