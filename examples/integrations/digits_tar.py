"""Handwritten digits in tar files, read as a stream by as many workers as you like. Kill some while it runs.

    ftlib run -n 4 examples/integrations/digits_tar.py

The first worker writes the files, as WebDataset has them: 0001.img and 0001.cls side by side. Needs scikit-learn
(pip install 'ftlib[demo]').
"""

import io
import os
import sys
import tarfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from ftlib import ElasticStream, FTLib

SHARDS, TRAIN = 12, 1437
epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
folder = Path(sys.argv[2] if len(sys.argv) > 2 else "digits-tar")
digits = load_digits()


def write(shard):
    path, making = folder / f"{shard:02}.tar", folder / f"{shard:02}.{os.getpid()}.making"
    with tarfile.open(making, "w") as archive:
        for index in range(shard, TRAIN, SHARDS):
            for kind, content in (
                ("img", digits.data[index].astype("float32").tobytes()),
                ("cls", str(digits.target[index]).encode()),
            ):
                info = tarfile.TarInfo(f"{index:04}.{kind}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    making.rename(path)
    return str(path)


def decode(records):
    images = torch.stack([torch.frombuffer(bytearray(record["img"]), dtype=torch.float32) for record in records]) / 16
    return images, torch.tensor([int(record["cls"]) for record in records])


folder.mkdir(exist_ok=True)
paths = [write(shard) for shard in range(SHARDS)]  # by every worker: all files are the same
stream = ElasticStream.tar(paths, batch_size=32, seed=7, lanes=2)
loader = stream.loader(num_workers=2, collate_fn=decode)
torch.manual_seed(7)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
with FTLib.init() as ft:
    ft.register_state(model=model, optimizer=optimizer, sampler=stream)
    for _ in stream.epochs(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            loss.backward()
            if ft.allreduce_average(model):
                optimizer.step()
                if ft.step % 50 == 0 and ft.rank == 0:
                    print(f"epoch {stream.epoch} step {ft.step}: loss {loss.item():.3f}, {ft.size} workers", flush=True)
    test = torch.tensor(digits.data[TRAIN:], dtype=torch.float32) / 16
    with torch.no_grad():
        right = (model(test).argmax(1) == torch.tensor(digits.target[TRAIN:])).float().mean().item()
    if ft.rank == 0:
        print(f"test accuracy {100 * right:.1f}%")
