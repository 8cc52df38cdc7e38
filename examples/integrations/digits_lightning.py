"""Handwritten digits with Lightning, trained by as many workers as you like. Kill some while it runs.

    ftlib run -n 4 examples/integrations/digits_lightning.py

Needs scikit-learn and Lightning (pip install 'ftlib[demo,lightning]').
"""

import sys

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from ftlib import ElasticSampler, FTLib
from ftlib.lightning import Batches, FTCallback, FTStrategy

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
dataset = TensorDataset(images[:1437], labels[:1437])


class Digits(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch, _):
        image, label = batch
        return cross_entropy(self.net(image), label)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step / 200))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


sampler = ElasticSampler(dataset, batch_size=32, seed=7)  # every image once an epoch, whoever comes and goes
loader = DataLoader(dataset, batch_sampler=sampler)
module = Digits()
with FTLib.init() as ft:
    trainer = pl.Trainer(
        max_epochs=epochs,
        gradient_clip_val=1.0,
        strategy=FTStrategy(ft),
        devices=1,
        callbacks=[FTCallback(ft, sampler)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, Batches(loader))
    with torch.no_grad():
        right = (module.net(images[1437:]).argmax(1) == labels[1437:]).float().mean().item()
    if ft.rank == 0:
        print(f"step {trainer.global_step}, epoch {trainer.current_epoch}: test accuracy {right:.2%}, {ft.size} workers")
    ft.barrier()
