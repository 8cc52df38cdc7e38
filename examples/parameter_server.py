"""Handwritten digits by asynchronous SGD: one process has the weights, the others bring gradients whenever they have some.

    python examples/parameter_server.py               # a server and three workers; one of them is killed, then the server

    export FTLIB_SECRET=$(ftlib keys new)              # the same by hand, on any hosts
    python examples/parameter_server.py serve 29600 weights.pt
    python examples/parameter_server.py work http://HOST:29600/new_session

Needs scikit-learn (pip install 'ftlib[demo]').
"""

import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ftlib.errors import FTLibError
from ftlib.torchft.parameter_server import ParameterServer
from ftlib.torchft.process_group import ProcessGroupGloo

STEPS = int(os.environ.get("STEPS", "1500"))  # of all workers together
RATE, MOMENTUM = 0.05, 0.5
KEEP_EVERY = 50  # steps between two checkpoints
PULL, PUSH = 0.0, 1.0


def new_model():
    torch.manual_seed(7)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


digits = load_digits()
images, labels = torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target)
train, test = slice(0, 1437), slice(1437, None)


class Weights(ParameterServer):
    """A session is requests of one number each: PULL answers with the steps so far and the weights, PUSH brings a gradient."""

    def __init__(self, port, file):
        self.model, self.file, self.lock = new_model(), file, threading.Lock()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=MOMENTUM)
        self.steps = 0
        if file.exists():
            kept = torch.load(file)
            self.steps = kept["steps"]
            self.model.load_state_dict(kept["model"])
            self.optimizer.load_state_dict(kept["optimizer"])
            print(f"server: goes on from step {self.steps}", flush=True)
        super().__init__(port)  # from here on it serves

    @classmethod
    def new_process_group(cls):
        return ProcessGroupGloo(timeout=60.0)

    def forward(self, session_id, pg):  # noqa: ARG002 - the name of the session, for logs
        request, gradient = torch.zeros(1), parameters_to_vector(self.model.parameters()).detach()
        while True:
            pg.recv([request], 1, 0).wait()  # raises once the worker is gone: the session is over then
            if request.item() == PULL:
                with self.lock:
                    told = torch.cat([torch.tensor([float(self.steps)]), parameters_to_vector(self.model.parameters())])
                pg.send([told.detach()], 1, 0).wait()
            else:
                pg.recv([gradient], 1, 0).wait()
                with self.lock:
                    self.step(gradient)

    def step(self, gradient):
        start = 0
        for parameter in self.model.parameters():
            parameter.grad = gradient[start : start + parameter.numel()].view_as(parameter).clone()
            start += parameter.numel()
        self.optimizer.step()
        self.steps += 1
        if self.steps % KEEP_EVERY == 0 or self.steps == STEPS:  # the last ones before a worker is told to end
            part = self.file.with_suffix(".part")
            torch.save({"steps": self.steps, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, part)
            part.replace(self.file)  # whole, or not at all


def serve(port, file):
    with Weights(port, file) as server:
        print(f"server: at {server.address()}", flush=True)
        while server.steps < STEPS:
            time.sleep(0.05)
        with torch.no_grad(), server.lock:
            right = (server.model(images[test]).argmax(1) == labels[test]).float().mean().item()
        print(f"server: {server.steps} steps, test accuracy {right:.2%}", flush=True)
        while server.sessions:  # the workers find out by themselves
            time.sleep(0.05)


def session(address):
    """Begin one; a server that is being started again gets half a minute."""
    until = time.monotonic() + 30
    while True:
        try:
            return Weights.new_session(address)
        except FTLibError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def work(address):
    model, done = new_model(), 0
    chance = torch.Generator().manual_seed(os.getpid())
    weights = parameters_to_vector(model.parameters()).detach()
    told = torch.zeros(1 + len(weights))
    pg = session(address)
    while True:
        try:
            pg.send([torch.tensor([PULL])], 0, 0).wait()
            pg.recv([told], 0, 0).wait()
            if told[0] >= STEPS:
                break
            vector_to_parameters(told[1:], model.parameters())
            batch = torch.randint(0, 1437, (32,), generator=chance)
            model.zero_grad()
            cross_entropy(model(images[batch]), labels[batch]).backward()
            pg.send([torch.tensor([PUSH])], 0, 0).wait()
            pg.send([parameters_to_vector([parameter.grad for parameter in model.parameters()])], 0, 0).wait()
            done += 1
        except RuntimeError:  # the server is gone; what it had not written is lost, and nothing else
            print(f"worker {os.getpid()}: the server is gone after {done} gradients; waiting for it", flush=True)
            pg = session(address)
    print(f"worker {os.getpid()}: {done} gradients", flush=True)
    pg.shutdown()


def demonstrate():
    """All of it on this machine: the first worker is killed, then the server, which comes back from its checkpoint."""
    os.environ["FTLIB_SECRET"] = secrets.token_urlsafe(32)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "weights.pt"

        def server(port):
            process = subprocess.Popen([sys.executable, __file__, "serve", port, str(file)], stdout=subprocess.PIPE, text=True)
            while " at " not in (line := process.stdout.readline()):
                print(line, end="", flush=True)
            return process, line.split(" at ")[1].strip()

        serving, address = server("0")
        workers = [subprocess.Popen([sys.executable, __file__, "work", address]) for _ in range(3)]
        while not file.exists():
            time.sleep(0.05)
        print(f"-- worker {workers[0].pid} is killed", flush=True)
        workers[0].kill()
        time.sleep(0.5)
        print("-- the server is killed, and started again", flush=True)
        serving.kill()
        serving.wait()
        serving, _ = server(address.rpartition(":")[2].partition("/")[0])
        for worker in workers:
            worker.wait()
        print(serving.communicate()[0], end="")


if __name__ == "__main__":
    torch.set_num_threads(1)
    match sys.argv[1:]:
        case ["serve", port, file]:
            serve(int(port), Path(file))
        case ["work", address]:
            work(address)
        case []:
            demonstrate()
        case _:
            sys.exit(__doc__)
