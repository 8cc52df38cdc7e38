"""Handwritten digits, trained by as many workers as you like. Kill some while it runs.

    ftlib run -n 4 examples/digits.py

Needs scikit-learn (pip install 'ftlib[demo]'). 1,000 steps take about half a minute on two cores.
"""

import sys

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from ftlib import FTLib

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
batch_size = 64  # of all workers together
seed = 7

# Data: 1,797 images of 8 x 8 pixels that come with scikit-learn. 1,437 to train on, 360 to test.
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
labels = torch.tensor(digits.target)
order = torch.from_numpy(np.random.default_rng(0).permutation(len(images)))
train, test = order[:1437], order[1437:]

# Model and optimizer, as always.
torch.manual_seed(seed)
model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
    nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

with FTLib.init() as ft:  # meets the other workers
    ft.register_state(model=model, optimizer=optimizer)  # what a worker that joins later needs
    while ft.step < steps:
        # Each step has one batch, drawn alike by everybody; each worker takes its share of it.
        batch = np.random.default_rng((seed, ft.step)).choice(train, batch_size, replace=False)
        share = batch[max(ft.rank, 0) :: max(ft.size, 1)]
        loss = cross_entropy(model(images[share]), labels[share])
        loss.backward()
        if ft.allreduce_average(model, weight=len(share)):  # a worker that dies in here costs the others nothing
            optimizer.step()
            if ft.step % 100 == 0 and ft.rank == 0:
                print(f"step {ft.step}: loss {loss.item():.4f}, {ft.size} workers in epoch {ft.epoch}")
        optimizer.zero_grad()

    with torch.no_grad():
        right = (model(images[test]).argmax(1) == labels[test]).sum().item()
    if ft.rank == 0:
        print(f"test accuracy {right / len(test):.2%} ({right} of {len(test)})")
    ft.barrier()  # ranks change when somebody leaves: stay until everybody has looked at his
