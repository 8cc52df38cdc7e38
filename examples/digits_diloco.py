"""Handwritten digits, learned by workers that train on their own and average every 20 steps. Kill some while it runs.

    ftlib run -n 4 examples/digits_diloco.py

Needs scikit-learn (pip install 'ftlib[demo]'). DiLoCo: https://arxiv.org/abs/2311.08105
"""

import sys

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from ftlib import DiLoCo, ElasticSampler, FTLib

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 40

# Data: 1,797 images of 8 x 8 pixels that come with scikit-learn. 1,437 to train on, 360 to test.
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
labels = torch.tensor(digits.target)
order = torch.from_numpy(np.random.default_rng(0).permutation(len(images)))
train, test = order[:1437], order[1437:]
dataset = TensorDataset(images[train], labels[train])

# The inner optimizer is each worker's own, and trains the model. The outer one steps the weights that all share.
torch.manual_seed(7)
model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
    nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10),
)  # fmt: skip
inner = torch.optim.AdamW(model.parameters(), lr=0.001)


def outer(weights):
    return torch.optim.SGD(weights, lr=0.7, momentum=0.5, nesterov=True)


# Every image once an epoch, whoever comes and goes.
sampler = ElasticSampler(dataset, batch_size=16, seed=7)
loader = DataLoader(dataset, batch_sampler=sampler)

with FTLib.init() as ft:  # meets the other workers
    diloco = DiLoCo(ft, model, inner=inner, outer=outer, sync_every=20, weight="samples")
    ft.register_state(model=diloco, sampler=sampler)  # what a worker that joins later needs
    with diloco:
        for _ in sampler.epochs(epochs):
            for image, label in loader:
                inner.zero_grad()
                loss = cross_entropy(model(image), label)
                loss.backward()
                syncs = diloco.syncs
                inner.step()  # every 20th time it ends with a sync; a worker that dies before costs the others nothing
                if diloco.syncs > syncs and ft.step % 10 == 0 and ft.rank == 0:
                    print(f"epoch {sampler.epoch} sync {ft.step}: loss {loss.item():.4f}, {ft.size} workers in view {ft.epoch}")

    diloco.load_global()  # the same weights at all workers
    with torch.no_grad():
        right = (model(images[test]).argmax(1) == labels[test]).sum().item()
    if ft.rank == 0:
        print(f"test accuracy {right / len(test):.2%} ({right} of {len(test)})")
    ft.barrier()  # ranks change when somebody leaves: stay until everybody has looked at his
