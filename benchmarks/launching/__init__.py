"""Launching: how soon workers run, how soon it is known that they failed, and that nothing is left; beside others.

    python -m benchmarks launching                               # all rows, ten to 50 times each; those of hosts need root
    python -m benchmarks launching --only orphans                # one of them, within three minutes: 50 of 50
    python -m benchmarks launching --peer PYTHON                 # beside torchrunx, which that interpreter has
    python -m benchmarks launching --only before --before TREE   # beside the ftlib run of another tree

PYTHON: an interpreter that has ``torchrunx==0.4.0`` beside what ftlib needs (the same torch, too). Without it that column is
empty. torchrun and ``torch.multiprocessing.spawn`` come with torch. Systems take turns. Each call is a process of its own: a
launch begins with the start of an interpreter.

* start: 4 local workers import torch and print a line; until the last of them has.
* raise, kill: 4 local workers print 2,500 lines each, then one raises (is killed by SIGKILL) while the others loop; until the
  caller has the exception, and how many lines it printed by then.
* orphans: 4 local workers, each with a loader and a daemon in a session of its own; the caller is killed by SIGKILL; until the
  last of these processes is gone.
* replacement: a worker of 4 that train a million parameters is killed; until the one that replaces it has made an average.
* sequence, crowd: 30 launches one after the other in one process, and 4 at once; 64 workers of a function without torch.
* before: ``ftlib run -n 4`` of this tree and of another: start, and what a SIGKILL of the launcher leaves.
* hosts: a function without torch on 2 hosts by ssh, and on 16. killed: an agent is. cut: a host is (agent_timeout=3).
  refused: a login is (beside ssh itself). far: the caller of workers on 3 hosts is killed. gigabyte: a result of 1 GB by ssh
  while lines flow, and the longest time for which nothing came from an agent. healed: a host of an elastic launch is cut off
  and healed.
* slurm: the caller in a job of a real Slurm is killed; 2 nodes.
"""

from __future__ import annotations


def main() -> int:
    from benchmarks.launching.rows import measure  # workers import this package, too

    return measure(__doc__)
