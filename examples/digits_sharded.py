"""Handwritten digits by replicas that shard their model: FSDP inside a replica, averages between replicas.

    ftlib run -n 2 --shards 2 examples/digits_sharded.py [epochs]

That starts two replicas of two processes. Kill a process while it runs: the other replica goes on, and the one that has lost a
process comes back as a whole.
"""

import logging
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from ftlib import ElasticSampler, FTLib

logging.basicConfig(level="INFO", format="%(message)s")
torch.manual_seed(1)
epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
labels = torch.tensor(digits.target)
test = torch.arange(0, len(images), 5)
train = torch.tensor([index for index in range(len(images)) if index % 5])
dataset = TensorDataset(images[train], labels[train])
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

with FTLib.init() as ft:  # which replica and which shard this is say the variables that ftlib run sets
    shard, shards = ft.settings.shard, ft.settings.shards
    mesh = ft.device_mesh("cpu", (shards,), ("shard",))  # the processes of this replica
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    sampler = ElasticSampler(dataset, batch_size=64, seed=7)  # a batch for each replica, the same one at all its processes
    loader = DataLoader(dataset, batch_sampler=sampler)
    ft.register_state(model=model, optimizer=optimizer, sampler=sampler)
    for _ in sampler.epochs(epochs):
        for image, label in loader:
            loss = cross_entropy(model(image[shard::shards]), label[shard::shards])  # of which each process takes its part
            loss.backward()  # FSDP averages over the processes of this replica
            if ft.allreduce_average(model):  # and this over the replicas, shard by shard
                optimizer.step()
                if ft.step % 20 == 0 and ft.rank == 0 and shard == 0:
                    print(f"epoch {sampler.epoch} step {ft.step}: loss {loss.item():.4f}, {ft.size} replicas of {shards}")
            optimizer.zero_grad()

    with torch.no_grad():
        right = (model(images[test]).argmax(1) == labels[test]).sum().item()
    if ft.rank == 0 and shard == 0:
        print(f"test accuracy {right / len(test):.2%} ({right} of {len(test)})")
    ft.barrier()  # ranks change when somebody leaves: stay until everybody has looked at his
