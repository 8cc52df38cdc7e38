"""Handwritten digits by asynchronous SGD over groups and a channel: gradients come in by the channel, weights go out by groups.

    python examples/gradients.py       # a server and three workers on this host; one of them is killed, and another one comes

The server keeps the weights and takes a step for each gradient, in the order in which they come. A worker that has put one
gets the newest weights back, by a group of two. So nobody waits for the slowest, or for one who dies. The server listens at
MEET (host:port), by default a port that is free as it begins.

Needs scikit-learn (pip install 'ftlib[demo]').
"""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from consensus import Config, ConsensusError, Gossip
from ftlib import Channel, Collective, CollectiveError

STEPS = int(os.environ.get("STEPS", "1500"))  # of all workers together; more, until worker-3 has come

digits = load_digits()
images, labels = torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target)
train, test = slice(0, 1437), slice(1437, None)


def new_model():
    torch.manual_seed(7)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def join(name):
    """This process as a member of the job: of the consensus alone, as it averages nothing."""
    address = os.environ["MEET"]
    bind = address if name == "server" else "127.0.0.1:0"
    member = Gossip(Config(job="gradients", introducers=(address,), initial_size=1, bind=bind))
    member.start(meta={"name": name})
    return member


def serve():
    member = join("server")
    with Collective(member) as collective:
        channel = Channel(collective, "gradients", maxsize=8)  # as many wait at most: old gradients teach little
        model, step, by = new_model(), 0, {}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
        while step < STEPS or "worker-3" not in by:
            item = channel.get(timeout=60)
            if item["gradients"] is not None:  # else a worker that has just come, and has no weights yet
                for parameter, gradient in zip(model.parameters(), item["gradients"], strict=True):
                    parameter.grad = gradient
                optimizer.step()
                step += 1
                by[item["name"]] = by.get(item["name"], 0) + 1
                if step % 100 == 0 and step <= max(STEPS, 100):
                    print(f"step {step}: gradients by {counts(by)}", flush=True)
            weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}  # they change while they are sent
            try:
                group = collective.create_collective_group([member.id, item["id"]], "weights")
                group.send(weights, async_op=True)
            except CollectiveError as error:
                print(f"server: goes on without {item['name']}: {error}", flush=True)
        with torch.no_grad():
            right = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
        print(f"server: {step} steps, by {counts(by)}; test accuracy {right:.2%}", flush=True)
    member.leave(ended=True)
    member.stop()


def counts(by):
    return ", ".join(f"{name} {by[name]}" for name in sorted(by))


def work(name):
    try:
        with ExitStack() as stack:
            member = join(name)
            stack.callback(member.stop)
            bring(stack.enter_context(Collective(member)), member, name)
    except (CollectiveError, ConsensusError) as error:  # the server has ended, perhaps before this one came
        print(f"{name}: ends, as {error}", flush=True)


def bring(collective, member, name):
    """Gradients, until the server has ended."""
    channel = Channel(collective, "gradients", at="server")  # a joiner: this asks for admission
    group = collective.create_collective_group([name, "server"], "weights")
    model, gradients = new_model(), None
    chance = torch.Generator().manual_seed(member.member.port)
    while True:
        channel.put({"name": name, "id": member.id, "gradients": gradients}, timeout=60)
        model.load_state_dict(group.recv(timeout=60))
        batch = torch.randint(0, 1437, (32,), generator=chance)
        model.zero_grad()
        cross_entropy(model(images[batch]), labels[batch]).backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters()]


def demonstrate():
    def start(*arguments, **options):
        return subprocess.Popen([sys.executable, __file__, *arguments], **options)

    with socket.create_server(("127.0.0.1", 0)) as free:
        os.environ.setdefault("MEET", "{}:{}".format(*free.getsockname()))
    os.environ["OMP_NUM_THREADS"] = "1"
    server = start("serve", stdout=subprocess.PIPE, text=True)
    workers = [start("work", f"worker-{number}") for number in range(3)]
    for line in server.stdout:
        print(line, end="", flush=True)
        if line.startswith("step 100:"):
            workers.pop(0).kill()
            print("-- worker-0 is killed, and worker-3 comes", flush=True)
            workers.append(start("work", "worker-3"))
    return max(server.wait(), *(worker.wait(120) for worker in workers))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve"]:
            serve()
        case ["work", name]:
            work(name)
        case _:
            sys.exit(demonstrate())
