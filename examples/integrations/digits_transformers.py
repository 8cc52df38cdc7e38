"""Handwritten digits with the Trainer of transformers, by as many workers as you like. Kill some while it runs.

    ftlib run -n 4 examples/integrations/digits_transformers.py

Needs scikit-learn and transformers (pip install 'ftlib[demo,hf]').
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from ftlib import FTLib
from ftlib.transformers import FTTrainer, FTTrainingArguments

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 400
digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
dataset = [{"image": image, "labels": label} for image, label in zip(images[:1437], labels[:1437], strict=True)]


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, image, labels):
        logits = self.net(image)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


model = Digits()
with FTLib.init() as ft:
    arguments = FTTrainingArguments(
        "digits",
        max_steps=steps,  # an epoch has as many steps as the workers that are there make it
        per_device_train_batch_size=32,
        learning_rate=0.01,
        max_grad_norm=1.0,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        remove_unused_columns=False,
    )
    trainer = FTTrainer(ft, model, arguments, train_dataset=dataset)
    trainer.train()
    with torch.no_grad():
        right = (model.net(images[1437:]).argmax(1) == labels[1437:]).float().mean().item()
    if trainer.is_world_process_zero():
        print(f"step {trainer.state.global_step}: test accuracy {right:.2%}, {ft.size} workers")
    ft.barrier()
