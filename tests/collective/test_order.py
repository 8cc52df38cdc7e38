"""Messages go to receives in order, whatever is withdrawn: the pure part against a model of two lists."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftlib.collective.order import Order

STEPS = st.lists(st.sampled_from(["post", "post", "message", "message", "withdraw", "end"]), max_size=60)


@given(STEPS, st.randoms(use_true_random=False))
def test_first_message_to_the_first_receive_that_is_left(steps: list[str], dice: object) -> None:
    """A link gives one message at a time, and only as many as it was asked for."""
    order: Order[int, str] = Order()
    asked, begun, ended = 0, 0, 0
    pending: list[int] = []
    got: list[tuple[int, str]] = []
    receives = 0
    for step in steps:
        match step:
            case "post":
                receives += 1
                message, more = order.post(receives)
                pending.append(receives)
                asked += more
                if message is not None:
                    got.append((pending.pop(), message))
            case "message" if begun == ended and begun < asked:
                begun += 1
                order.begin(f"message {begun}")
            case "end" if ended < begun:
                ended += 1
                receive = order.end()
                if receive is not None:
                    pending.remove(receive)
                    got.append((receive, f"message {ended}"))
            case "withdraw" if pending:
                receive = dice.choice(pending)  # type: ignore[attr-defined]
                taker = pending[0] if ended < begun and order._taker is not None else None
                taken, coming = order.withdraw(receive)
                assert taken and coming == (f"message {begun}" if receive == taker else None)
                pending.remove(receive)
                assert order.withdraw(receive) == (False, None)
        assert len(order) == len(pending)
        assert len(pending) <= asked - ended, "every receive that waits has a message asked for"
    assert [message for _, message in got] == [f"message {n + 1}" for n in range(len(got))], "none lost, none overtaken"
    assert [receive for receive, _ in got] == sorted(receive for receive, _ in got)
    assert sorted(order.clear(keep=False)) == pending and len(order) == 0
