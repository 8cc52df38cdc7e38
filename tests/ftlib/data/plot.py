"""What a random case is made of: everything follows from its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Plot:
    """One job's data, program and luck."""

    seed: int
    size: int
    batch_size: int
    shuffle: bool
    drop_last: bool
    global_batch: bool
    founders: int
    epochs: int
    accumulate: int
    """Batches a call is made of."""
    again: bool
    """Whether every call is followed by another average of the same batch."""
    breaks: tuple[int, ...]
    """Steps after which the program leaves its loop."""
    counts: bool
    """Whether the program counts epochs itself (``set_epoch``) or asks for them (``epochs``)."""
    fails: float
    """Chance that a call ends unfinished: for want of members, or by an exception."""
    repeats: bool
    """Whether it repeats a call that ended unfinished."""
    shared: bool
    """Whether founders load the senior's state in their first call."""
    resumes: int
    """After how many calls the whole job dies and is started again; 0: never."""
    vetoes: float
    """Chance that a call finishes without a step."""
    backup_workers: float
    """Chance that a call is carried out without waiting for the last one, of whom nothing counts."""
    danger: float
    """Chance that the view changes, at each moment where it may."""
    shards: tuple[int, ...] = ()
    """Records of each shard of a stream; none: it is a dataset that is indexed."""
    told: bool = False
    """Whether the sizes of shards are told beforehand."""
    lanes: int = 1
    """Shards that a member reads in turn."""
    declines: float = 0.0
    """Chance that a call is declined."""
    gives_up: float = 0.0
    """Chance that a member leaves a call by an exception that others have finished, and goes on with its next batch."""
    local: bool = False
    """Whether a call is a sync: ``accumulate`` inner steps apart, tried again after the next one if unfinished."""
    delay: int = 0
    """Batches that are drawn beside a sync."""

    @property
    def even(self) -> bool:
        """Whether all loops end after the same call. Who goes on after a failed call may differ. In local training all do, but
        a joiner may be at another place of its round.
        """
        if self.local:
            return not self.danger
        return (self.repeats or not self.fails) and not self.gives_up

    @property
    def total(self) -> int:
        """Samples of an epoch."""
        if self.shards:
            return sum(self.shards)
        return self.size - (self.size % self.batch_size if self.drop_last else 0)

    @classmethod
    def stream(cls, seed: int) -> Plot:
        """Such a case, of a stream."""
        luck = random.Random(~seed)
        shards = [luck.choice((0, 1, luck.randint(0, 12), luck.randint(0, 100))) for _ in range(luck.randint(1, 8))]
        shards[0] += not sum(shards)
        told, lanes = luck.random() < 0.5, luck.choice((1, 1, 2, 3))
        return replace(cls.of(seed), drop_last=False, global_batch=False, shards=tuple(shards), told=told, lanes=lanes)

    @classmethod
    def declining(cls, seed: int) -> Plot:
        """Such a case, in which calls are declined by members that may have left them by an exception."""
        luck = random.Random(f"{seed} declining")
        danger = luck.choice((0.02, 0.1))
        given = replace(cls.of(seed), danger=danger, repeats=False, breaks=())
        return replace(given, declines=luck.choice((0.05, 0.3)), gives_up=luck.choice((0.0, 0.3, 0.7)))

    @classmethod
    def syncing(cls, seed: int) -> Plot:
        """Such a case, with local training: calls are syncs, and fail more often."""
        luck = random.Random(f"{seed} syncing")
        every, delay = luck.randint(1, 5), luck.choice((0, 0, 1, 2))
        given = replace(cls.of(seed), local=True, again=False, repeats=False, backup_workers=0.0, drop_last=False, breaks=())
        return replace(given, accumulate=every, delay=min(delay, every - 1), fails=luck.choice((0.0, 0.1, 0.4)))

    @classmethod
    def of(cls, seed: int) -> Plot:
        luck = random.Random(seed)
        batch_size = luck.randint(1, 5)
        counts, again = luck.random() < 0.5, luck.random() < 0.1
        # A joiner that counts epochs itself does not know which one it came into: it cannot leave one early.
        breaks = tuple(luck.sample(range(1, 30), 2)) if luck.random() < 0.3 and not counts else ()
        return cls(
            seed=seed,
            size=luck.randint(batch_size, luck.choice((6, 30, 80)) + batch_size),
            batch_size=batch_size,
            shuffle=luck.random() < 0.5,
            drop_last=luck.random() < 0.2,
            global_batch=luck.random() < 0.2,
            founders=luck.randint(1, 4),
            epochs=luck.randint(1, 3),
            accumulate=luck.choice((1, 1, 1, 2, 3)),
            again=again,
            breaks=breaks,
            counts=counts,
            fails=luck.choice((0.0, 0.05)),
            repeats=luck.random() < 0.5,
            shared=luck.random() < 0.5,
            resumes=luck.randint(1, 20) if luck.random() < 0.3 else 0,
            vetoes=luck.choice((0.0, 0.05)),
            backup_workers=luck.choice((0.0, 0.0, 0.1, 0.5)) if not breaks and not again else 0.0,
            danger=luck.choice((0.0, 0.02, 0.1, 0.3)),
        )
