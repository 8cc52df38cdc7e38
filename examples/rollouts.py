"""Reinforcement learning: two trainers average gradients, rollout workers play with their weights, and come and go meanwhile.

    python examples/rollouts.py        # all of it on this host; a rollout worker is killed, and another one comes

The first trainer listens at MEET (host:port), and whichever trainer comes first at TRAINERS; by default ports that are free as
it begins.

Trainers are in two jobs: one of their own, to average, and one with the rollout workers, who average nothing. Weights go by a
group of two to each rollout worker; what is played comes back through a channel that the first trainer serves. The game: eight
numbers are shown, and the action is right that a hidden matrix ranks highest.
"""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack

import torch
from torch import nn
from torch.distributions import Categorical

from consensus import Config, ConsensusError, Gossip
from ftlib import Channel, Collective, CollectiveError, FTLib

STEPS = int(os.environ.get("STEPS", "300"))
PLAYED = 64  # games in one item of the channel
BATCH = 128  # games in a step of one trainer

hidden = torch.randn(8, 4, generator=torch.Generator().manual_seed(3))


def new_policy():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))


def join(name):
    """This process as a member of the job of all."""
    address = os.environ["MEET"]
    first = name == "trainer-0"
    member = Gossip(Config(job="rollouts", introducers=(address,), initial_size=1, bind=address if first else "127.0.0.1:0"))
    member.start(meta={"name": name})
    return member


def trainer(number):
    member = join(f"trainer-{number}")
    with (
        FTLib.init(job="trainers", introducers=[os.environ["TRAINERS"]], initial_size=2) as ft,  # who comes first listens there
        Collective(member) as collective,
    ):
        policy = new_policy()
        optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
        ft.register_state(model=policy, optimizer=optimizer)
        channel = Channel(collective, "played", at="trainer-0", maxsize=16)  # as many wait at most: old games teach little
        sent = {}  # the newest weights on their way to each rollout worker
        rewards = []
        for step in range(STEPS):
            games = channel.get_batch(BATCH, timeout=60)
            states, actions, reward = (torch.cat([game[part] for game in games]) for part in ("states", "actions", "rewards"))
            loss = -(Categorical(logits=policy(states)).log_prob(actions) * (reward - reward.mean())).mean()
            loss.backward()
            if ft.allreduce_average(policy):
                optimizer.step()
            optimizer.zero_grad()
            rewards.append(reward.mean().item())
            if number == 0:
                hand_out(collective, member, policy, sent)
                if step % 50 == 49:
                    players = sorted(each.fact("name") for each in member.get_member_list() if is_rollout(each))
                    mean = sum(rewards[-50:]) / 50
                    print(f"step {step + 1}: {mean:.0%} right, played by {', '.join(players)}", flush=True)
        ft.barrier()
    member.leave(ended=True)
    member.stop()


def is_rollout(member):
    return (member.fact("name") or "").startswith("rollout")


def hand_out(collective, member, policy, sent):
    """The weights to every rollout worker that has taken the last ones; one that has died is not there next time."""
    for other in filter(is_rollout, member.get_member_list()):
        try:
            if other.id not in sent or sent[other.id].done():
                weights = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
                group = collective.create_collective_group([member.member, other], "weights")
                sent[other.id] = group.send(weights, async_op=True)
        except CollectiveError:
            sent.pop(other.id, None)


def rollout(name):
    try:
        with ExitStack() as stack:
            member = join(name)
            stack.callback(member.stop)
            play(stack.enter_context(Collective(member)), name)
    except (CollectiveError, ConsensusError) as error:  # the trainers have ended, perhaps before it came; or it was cut off
        print(f"{name}: ends, as {error}", flush=True)


def play(collective, name):
    """Until the trainers have ended."""
    policy = new_policy()
    channel = Channel(collective, "played", at="trainer-0")  # a joiner: this asks for admission
    group = collective.create_collective_group([name, "trainer-0"], "weights")
    news = group.recv(async_op=True)
    while True:
        while news.done():
            policy.load_state_dict(news.wait())
            news = group.recv(async_op=True)
        states = torch.randn(PLAYED, 8)
        with torch.no_grad():
            actions = Categorical(logits=policy(states)).sample()
        rewards = (actions == (states @ hidden).argmax(1)).float()
        channel.put({"states": states, "actions": actions, "rewards": rewards}, weight=PLAYED, timeout=60)


def demonstrate():
    def start(*arguments, **options):
        return subprocess.Popen([sys.executable, __file__, *map(str, arguments)], **options)

    with socket.create_server(("127.0.0.1", 0)) as meet, socket.create_server(("127.0.0.1", 0)) as trainers:
        os.environ.setdefault("MEET", "{}:{}".format(*meet.getsockname()))
        os.environ.setdefault("TRAINERS", "{}:{}".format(*trainers.getsockname()))
    os.environ["OMP_NUM_THREADS"] = "1"
    first, second = start("trainer", 0, stdout=subprocess.PIPE, text=True), start("trainer", 1)
    players = [start("rollout", f"rollout-{number}") for number in range(2)]
    for line in first.stdout:
        print(line, end="", flush=True)
        if line.startswith("step 50:"):
            players[0].kill()
            print("rollout-0 is killed, and rollout-2 comes", flush=True)
            players.append(start("rollout", "rollout-2"))
    codes = [first.wait(), second.wait(), *(player.wait(120) for player in players[1:])]
    return max(codes)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["trainer", number]:
            trainer(int(number))
        case ["rollout", name]:
            rollout(name)
        case _:
            sys.exit(demonstrate())
