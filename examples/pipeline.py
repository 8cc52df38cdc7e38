"""A model in three stages, each in a process of its own: activations go forward, gradients come back, eight pieces at a time.

    ftlib run -n 3 examples/pipeline.py

Needs scikit-learn (pip install 'ftlib[demo]'). The schedule is GPipe's: https://arxiv.org/abs/1811.06965
"""

import asyncio
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from ftlib import Collective, FTLib

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 8
PIECES = 8  # of a batch: while one stage works on a piece, the others work on those before and behind it

digits = load_digits()
images, labels = torch.tensor(digits.images, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(digits.target)
train, test = slice(0, 1408), slice(1408, None)

torch.manual_seed(7)
STAGES = [
    nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    nn.Sequential(nn.Flatten(), nn.Linear(1024, 256), nn.ReLU()),
    nn.Linear(256, 10),
]


async def one(stage, before, after, piece, answer):
    """A piece of a batch at one stage: forward, then backward; its loss at the last stage."""
    inputs = piece if before is None else (await before.recv(async_op=True)).requires_grad_()
    outputs = stage(inputs)
    loss = None
    if after is None:
        loss = cross_entropy(outputs, answer) / PIECES
        loss.backward()
    else:
        sent = after.send(outputs.detach(), async_op=True)
        gradient = after.recv(async_op=True)  # asked for at once: the next piece asks behind this one
        await sent
        outputs.backward(await gradient)
    if before is not None:
        await before.send(inputs.grad, async_op=True)
    return loss


async def work(rank, before, after):
    """All of the training at one stage. The streams keep the order of the pieces, so nothing needs a number."""
    stage = STAGES[rank]
    optimizer = torch.optim.Adam(stage.parameters(), lr=0.002)
    for epoch in range(EPOCHS):
        for start in range(0, 1408, 128):
            pieces = images[start : start + 128].chunk(PIECES)
            answers = labels[start : start + 128].chunk(PIECES)
            losses = await asyncio.gather(*(one(stage, before, after, *each) for each in zip(pieces, answers, strict=True)))
            optimizer.step()
            optimizer.zero_grad()
        if after is None:
            print(f"epoch {epoch}: loss {sum(losses).item():.4f}", flush=True)
    with torch.no_grad():
        found = stage(images[test] if before is None else await before.recv(async_op=True))
        if after is not None:
            await after.send(found, async_op=True)
        else:
            right = (found.argmax(1) == labels[test]).sum().item()
            print(f"test accuracy {right / len(found):.2%} ({right} of {len(found)})", flush=True)


with FTLib.init() as ft, Collective(ft) as collective:  # here FTLib only says who is there: nothing is averaged
    members, rank = ft.member_list, ft.rank
    before = collective.create_collective_group(members[rank - 1 : rank + 1]) if rank > 0 else None
    after = collective.create_collective_group(members[rank : rank + 2]) if rank < 2 else None
    asyncio.run(work(rank, before, after))  # PeerLost at a stage whose neighbour dies: ftlib run starts all of it again
