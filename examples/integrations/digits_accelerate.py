"""Handwritten digits with accelerate, trained by as many workers as you like. Kill some while it runs.

    ftlib run -n 4 examples/integrations/digits_accelerate.py

Needs scikit-learn and accelerate (pip install 'ftlib[demo,hf]').
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from ftlib import ElasticSampler, FTLib
from ftlib.accelerate import FTAccelerator

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
dataset = TensorDataset(images[:1437], labels[:1437])
sampler = ElasticSampler(dataset, batch_size=16, seed=7)  # every image once an epoch, whoever comes and goes

with FTLib.init() as ft:
    accelerator = FTAccelerator(ft, clip_norm=1.0, gradient_accumulation_steps=2)
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step / 200))
    loader = DataLoader(dataset, batch_sampler=sampler)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)  # registers them, too
    for _ in sampler.epochs(epochs):
        for image, label in loader:
            with accelerator.accumulate(model):
                accelerator.backward(cross_entropy(model(image), label))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    with torch.no_grad():
        right = (model(images[1437:]).argmax(1) == labels[1437:]).float().mean().item()
    if accelerator.is_main_process:
        print(f"step {ft.step}: test accuracy {right:.2%}, {ft.size} workers")
    ft.barrier()
