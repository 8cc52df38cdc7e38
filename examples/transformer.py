"""A small transformer that learns to write Python from the source of Python's own standard library. Kill some workers of it.

    ftlib run -n 3 examples/transformer.py            # averages between backward and the step
    ftlib run -n 3 examples/transformer.py --wrapped  # the same beside backward, as torch's DistributedDataParallel does it

Every character is learnt from exactly once an epoch, whoever comes and goes. One epoch takes a few minutes on two cores.
"""

import math
import sys
import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from ftlib import DistributedDataParallel, ElasticSampler, FTLib, Optimizer

wrapped = "--wrapped" in sys.argv
numbers = [int(argument) for argument in sys.argv[1:] if argument != "--wrapped"]
epochs, characters = (*numbers, *(1, 2_000_000)[len(numbers) :])
context, width, layers, heads = 64, 96, 3, 4
batch_size = 96  # of all workers together, however many there are
peak_rate, warmup = 2e-3, 100

# Data: real text that is on every machine. All workers need the same release of Python, or they read different books.
text = ""
for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
    text += path.read_text(encoding="utf-8", errors="replace")
    if len(text) >= characters:
        break
book = torch.tensor([min(ord(character), 127) for character in text[:characters]])  # ASCII; whatever else: one character more


class Pages(Dataset):
    """The book in windows of ``context`` characters, and one more to be guessed."""

    def __len__(self):
        return (len(book) - 1) // context

    def __getitem__(self, index):
        return book[index * context : (index + 1) * context + 1]


class Writer(nn.Module):
    """Guesses each next character from those before."""

    def __init__(self):
        super().__init__()
        self.character = nn.Embedding(128, width)
        self.place = nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.guess = nn.Linear(width, 128)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context), persistent=False)

    def forward(self, page):
        length = page.shape[1]
        x = self.character(page) + self.place(torch.arange(length))
        return self.guess(self.layers(x, mask=self.mask[:length, :length], is_causal=True))


torch.manual_seed(7)
pages, model = Pages(), Writer()
optimizer = torch.optim.AdamW(model.parameters(), lr=peak_rate)
steps = epochs * math.ceil(len(pages) / batch_size)
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda step: min((step + 1) / warmup, 0.55 + 0.45 * math.cos(math.pi * min(step / steps, 1.0)))
)
sampler = ElasticSampler(pages, batch_size=batch_size, global_batch=True, seed=7)
loader = DataLoader(pages, batch_sampler=sampler, num_workers=1, persistent_workers=True)


def apply():
    """What one averaged gradient does to the model: a worker that joins does the same with those that it missed."""
    if wrapped:
        optimizer.apply()  # it clips, too
    else:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    scheduler.step()


with FTLib.init() as ft:  # meets the other workers; each counts as many samples as it has read
    if wrapped:
        model, optimizer = DistributedDataParallel(ft, model), Optimizer(ft, optimizer, clip_norm=1.0)
    ft.register_state(model=model, optimizer=[optimizer, scheduler], sampler=sampler, apply=apply)
    for _ in sampler.epochs(epochs):
        for page in loader:
            loss = cross_entropy(model(page[:, :-1]).transpose(1, 2), page[:, 1:])
            loss.backward()
            if wrapped:
                status = optimizer.step()  # backward has averaged already
                if status:
                    scheduler.step()
            else:
                status = ft.allreduce_average(model)
                if status:
                    apply()
            if status and ft.step % 10 == 0 and ft.rank == 0:
                bits = loss.item() / math.log(2)
                print(f"epoch {sampler.epoch} step {ft.step} of about {steps}: {bits:.2f} bits a letter, {ft.size} workers")
            optimizer.zero_grad()

    if ft.rank == 0:
        written = [ord(character) for character in "def "]
        generator = torch.Generator().manual_seed(7)
        for _ in range(200):
            chances = model(torch.tensor([written[-context:]]))[0, -1].softmax(0)
            written.append(torch.multinomial(chances, 1, generator=generator).item())
        print("".join(map(chr, written)))
    ft.barrier()  # ranks change when somebody leaves: stay until everybody has looked at his
