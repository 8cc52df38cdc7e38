"""Handwritten digits, trained by as many workers as you like. Kill some while it runs.

    ftlib run -n 4 examples/digits.py

Needs scikit-learn (pip install 'ftlib[demo]'). 40 epochs take about half a minute on two cores.
"""

import sys

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from ftlib import ElasticSampler, FTLib

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 40
batch_size = 16  # of each worker
rate = 0.005  # for each worker: the more there are, the larger the step

# Data: 1,797 images of 8 x 8 pixels that come with scikit-learn. 1,437 to train on, 360 to test.
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
labels = torch.tensor(digits.target)
order = torch.from_numpy(np.random.default_rng(0).permutation(len(images)))
train, test = order[:1437], order[1437:]
dataset = TensorDataset(images[train], labels[train])

# Model and optimizer, as always.
torch.manual_seed(7)
model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
    nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)

# Every image once an epoch, whoever comes and goes.
sampler = ElasticSampler(dataset, batch_size=batch_size, seed=7)
loader = DataLoader(dataset, batch_sampler=sampler)


def rescale(view):
    """The job has grown or shrunk, and with it the batch of all workers together. Everybody is told in the same step."""
    for group in optimizer.param_groups:
        group["lr"] = rate * len(view)


with FTLib.init() as ft:  # meets the other workers
    ft.register_state(model=model, optimizer=optimizer, sampler=sampler)  # what a worker that joins later needs
    ft.on_view_change(rescale)
    for _ in sampler.epochs(epochs):
        for image, label in loader:
            loss = cross_entropy(model(image), label)
            loss.backward()
            if ft.allreduce_average(model):  # a worker that dies in here costs the others nothing
                optimizer.step()
                if ft.step % 100 == 0 and ft.rank == 0:
                    print(f"epoch {sampler.epoch} step {ft.step}: loss {loss.item():.4f}, {ft.size} workers in view {ft.epoch}")
            optimizer.zero_grad()

    with torch.no_grad():
        right = (model(images[test]).argmax(1) == labels[test]).sum().item()
    if ft.rank == 0:
        print(f"test accuracy {right / len(test):.2%} ({right} of {len(test)})")
    ft.barrier()  # ranks change when somebody leaves: stay until everybody has looked at his
