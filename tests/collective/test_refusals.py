"""What a program gets wrong is said at the call, by a text that names the remedy, and leaves everything as it was."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from consensus import Config, Gossip
from ftlib import Channel, Collective, FTLibError, Refused
from ftlib.errors import ConfigError

from .test_groups import LIMIT, collectives, two

GROUP: list[tuple[Callable[[Any], Any], str]] = [
    (lambda group: group.recv_tensor(None), "pass a tensor or a numpy array, or use send and recv"),
    (lambda group: group.recv_tensor([0.0]), "pass a tensor or a numpy array, or use send and recv"),
    (lambda group: group.send_tensor(7), "pass a tensor or a numpy array, or use send and recv"),
    (lambda group: group.send_tensor(np.array([{}])), "convert its dtype"),
    (
        lambda group: group.send({"w": torch.zeros(2, 3).t()}),
        "value['w']: the tensor is not contiguous: pass tensor.contiguous()",
    ),
    (lambda group: group.send(np.ma.masked_array([1.0], [True])), "a masked array cannot be sent"),
    (lambda group: group.send({1, 2}), "allow_pickle=True at both sides"),
    (lambda group: group.recv(timeout="1"), "a timeout is a number of seconds, not '1'"),
    (lambda group: group.send(1, timeout="1"), "a timeout is a number of seconds, not '1'"),
    (lambda group: group.recv(timeout=float("nan")), "a timeout is a number of seconds, not nan"),
    (lambda group: group.broadcast(1, timeout="1"), "a timeout is a number of seconds, not '1'"),
    (lambda group: group.broadcast(1, src="nobody"), "nobody is no member of group"),
]


def test_a_group_refuses_and_goes_on() -> None:
    with two() as (a, b):
        for call, text in GROUP:
            for end in (a, b):
                with pytest.raises(Refused, match=re.escape(text)):
                    call(end)
        for one, other in ((a, b), (b, a)):  # no receive was left behind, which would take this
            one.send("next", timeout=LIMIT)
            assert other.recv(timeout=LIMIT) == "next"


def test_a_collective_refuses() -> None:
    with collectives(2) as (made, ids):
        for addresses, name, text in (
            (ids[0] + ids[1], None, "give a list"),
            (ids, 3, "give a string"),
            ([ids[0], 7], None, "7 is no"),
            (ids, "n" * 5000, "the name of a group 'nnn.* has 5000 bytes; 4096 are the most"),
            (ids, "\ud800", "the name of a group .* is no text"),
        ):
            with pytest.raises(Refused, match=text):
                made[0].create_collective_group(addresses, name)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="of an FTLib, or of a started consensus, not of None"):
            Collective(None)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"call its start\(\) before"):
            Collective(Gossip(Config(job="none")))
        with pytest.raises(ConfigError, match="use that one, or close it first"):
            Collective(made[0]._x)
        group = made[0].create_collective_group(ids)
        group.send("next", timeout=LIMIT)
        assert made[1].create_collective_group(ids).recv(timeout=LIMIT) == "next"


def test_a_channel_refuses_and_goes_on() -> None:
    """A weight that is no number ended the stream to the server, where it was found."""
    with collectives(2) as (made, _):
        here = Channel(made[0], "q")
        far = Channel(made[1], "q", at=made[0].here)
        for channel in (here, far):
            for weight in ("much", float("nan"), None, torch.zeros(2), 10**400):
                with pytest.raises(FTLibError, match="a weight is a number"):
                    channel.put(1, weight=weight)  # type: ignore[arg-type]
                with pytest.raises(FTLibError, match="a weight is a number"):
                    channel.get_batch(weight)  # type: ignore[arg-type]
            with pytest.raises(FTLibError, match="the key of an item is a string"):
                channel.put(1, key=3)  # type: ignore[arg-type]
            for key, text in (("k" * 5000, "has 5000 bytes; 4096 are the most"), ("\ud800", "is no text")):
                with pytest.raises(Refused, match=f"the key .* {text}"):
                    channel.put(1, key=key, async_op=True)
            for timeout in ("1", 10**400):
                with pytest.raises(FTLibError, match="a timeout is a number"):
                    channel.get(timeout=timeout)  # type: ignore[arg-type]
            channel.put("a", weight=torch.tensor(2), timeout=LIMIT)  # type: ignore[arg-type]
            channel.put("b", weight=np.float32(0.5), timeout=LIMIT)
            assert channel.get_batch(2.5, timeout=LIMIT) == ["a", "b"]
        with pytest.raises(Refused, match="the name of a channel is a string"):
            Channel(made[0], 3)  # type: ignore[arg-type]
        with pytest.raises(Refused, match=r"the name of a channel .* has 5000 bytes"):
            Channel(made[1], "n" * 5000, at=made[0].here)
        with pytest.raises(Refused, match="maxsize is a number of items, not '16'"):
            Channel(made[0], "other", maxsize="16")  # type: ignore[arg-type]
        with pytest.raises(Refused, match="maxsize is a number of items, at most"):
            Channel(made[0], "other", maxsize=1 << 70)
        assert Channel(made[0], "other", maxsize=np.int64(1)).full() is False  # type: ignore[arg-type]
