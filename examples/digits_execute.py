"""The digits once more, a whole step as one unit: it has a collective of its own, which no single average could recover.

    ftlib run -n 4 examples/digits_execute.py

Needs scikit-learn (pip install 'ftlib[demo]'). 20 epochs take about half a minute on two cores.
"""

import sys

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from ftlib import ElasticSampler, FTLib

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 20

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
labels = torch.tensor(digits.target)
order = torch.from_numpy(np.random.default_rng(0).permutation(len(images)))
train, test = order[:1437], order[1437:]
dataset = TensorDataset(images[train], labels[train])

torch.manual_seed(7)
model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
    nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
sampler = ElasticSampler(dataset, batch_size=64, global_batch=True, seed=7)  # 64 images a step, however many workers
loader = DataLoader(dataset, batch_sampler=sampler)


def step(image, label):
    """All of it happens at all workers, or nothing: where one is lost, the others begin it anew from the last commit."""
    optimizer.zero_grad()
    found = model(image)
    loss = cross_entropy(found, label)
    loss.backward()
    if ft.allreduce_average(model):
        optimizer.step()
    right = (found.argmax(1) == label).sum().float().view(1)
    if ft.group is not None:  # the program's own collective; None where this worker is alone
        ft.group.allreduce(right).wait(60)
    return loss.item(), int(right)


with FTLib.init() as ft:
    ft.register_state(model=model, optimizer=optimizer, sampler=sampler)
    for _ in sampler.epochs(epochs):
        for image, label in loader:
            loss, right = ft.execute(step, image, label)
            if ft.step % 100 == 0 and ft.rank == 0:
                print(f"epoch {sampler.epoch} step {ft.step}: loss {loss:.4f}, about {right} of 64 right, {ft.size} workers")

    with torch.no_grad():
        right = (model(images[test]).argmax(1) == labels[test]).sum().item()
    if ft.rank == 0:
        print(f"test accuracy {right / len(test):.2%} ({right} of {len(test)})")
    ft.barrier()
