"""Handwritten digits, trained by Ray actors. One of them is killed, and Ray starts it again.

    pip install 'ray' 'ftlib[demo]'
    python examples/ray/digits.py            # on a cluster: RAY_ADDRESS=auto python examples/ray/digits.py

Ray places the workers, starts them again, and carries back what they return. Nothing of the training goes through Ray: the
workers average among themselves, and while one is away the others go on. All actors must reach each other at PORT and the
following ports of their nodes (29600 by default). Who is let in knows FTLIB_SECRET, which the driver makes for this run.
"""

import os
import secrets
import signal

import ray
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from ftlib import ElasticSampler, FTLib

WORKERS = int(os.environ.get("WORKERS", "3"))
EPOCHS = int(os.environ.get("EPOCHS", "60"))
PORT = int(os.environ.get("PORT", "29600"))


# With GPUs: num_gpus=1. After the death of its process Ray starts another one, and makes the call once more.
@ray.remote(num_cpus=0, scheduling_strategy="SPREAD", max_restarts=-1, max_task_retries=-1)
class Worker:
    def __init__(self, number):
        self.number = number
        self.node = ray.util.get_node_ip_address()

    def address(self):
        return f"{self.node}:{PORT + self.number}"

    def train(self, founders):
        again = ray.get_runtime_context().was_current_actor_reconstructed
        # A founder is at the address that all know. Started again it may be on another node: it joins from any port there.
        bind = founders[self.number] if self.address() == founders[self.number] else f"{self.node}:0"
        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
        dataset = TensorDataset(images[:1437], torch.tensor(digits.target[:1437]))
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        sampler = ElasticSampler(dataset, batch_size=16, seed=7)
        with FTLib.init(introducers=founders, initial_size=WORKERS, bind=bind) as ft:
            ft.register_state(model=model, optimizer=optimizer, sampler=sampler)
            for _ in sampler.epochs(EPOCHS):
                for image, label in DataLoader(dataset, batch_sampler=sampler):
                    loss = cross_entropy(model(image), label)
                    loss.backward()
                    if ft.allreduce_average(model):
                        optimizer.step()
                        if ft.step % 50 == 0:
                            print(f"worker {self.number} step {ft.step}: loss {loss.item():.3f}, {ft.size} workers", flush=True)
                    optimizer.zero_grad()
                    if self.number == 1 and ft.step >= 60 and not again:
                        os.kill(os.getpid(), signal.SIGKILL)  # as a spot instance would go
            with torch.no_grad():
                right = (model(images[1437:]).argmax(1) == torch.tensor(digits.target[1437:])).float().mean().item()
            ft.barrier()  # stay until all have come to the end
            return {"worker": self.number, "again": again, "steps": ft.step, "accuracy": right}


def main():
    environment = {"FTLIB_SECRET": os.environ.get("FTLIB_SECRET") or secrets.token_urlsafe(), "FTLIB_JOB": "digits"}
    ray.init(runtime_env={"env_vars": environment})
    workers = [Worker.remote(number) for number in range(WORKERS)]
    founders = ray.get([worker.address.remote() for worker in workers])
    for told in ray.get([worker.train.remote(founders) for worker in workers]):
        came = "came back, and " if told["again"] else ""
        print(f"worker {told['worker']}: {came}was there at step {told['steps']}, test accuracy {told['accuracy']:.2%}")


if __name__ == "__main__":
    main()
