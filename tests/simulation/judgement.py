"""What may be left of a job once the network is healed: agreement of the living, or a block for the promised reason."""

from __future__ import annotations

from consensus.simulation import Host, World


def living(world: World) -> list[Host]:
    """Whoever runs and was not told to stop."""
    return [host for host in world.hosts.values() if host.alive and host.stopped is None]


def cut_off(world: World, host: Host) -> bool:
    """Nobody that this process knows of is there any more to tell it anything."""
    view = host.machine.known_view
    known = set(host.machine._introducers)
    known |= {member.address for member in view.members if member.id != host.id} if view else set()
    others = [world.at_address.get(address) for address in known]
    alone = view is not None and view.ids == (host.id,)
    return not alone and not any(other is not None and other is not host and other.running for other in others)


def settled(world: World) -> bool:
    """Everybody who lives acts in one view made of exactly the living, or nobody of them ever got in."""
    hosts = [host for host in living(world) if not cut_off(world, host)]
    if not hosts:
        return True
    views = {host.activated[-1].view_id if host.activated else "" for host in hosts}
    if len(views) > 1 or views == {""}:
        return views == {""} and all(host.machine.view is None for host in hosts)
    return set(hosts[0].activated[-1].ids) == {host.id for host in hosts}


def blocked_for_good(world: World) -> bool:
    """Whether the newest view has no quorum left by (a), and by (b) some dead member may not be discounted."""
    views = [host.machine.view for host in living(world) if host.machine.view is not None]
    if not views:
        return True
    newest = max(views, key=lambda view: view.epoch)
    inside = [host for member in newest.members for host in living(world) if host.id == member.id]
    if 2 * len(inside) > len(newest) or (2 * len(inside) == len(newest) and newest.members[0].id == inside[0].id):
        return False
    if not inside:
        return True
    answers = {host.id for host in inside}
    return any(key not in answers and key not in inside[0].machine._core.evidence.discounted for key in newest.ids)


def judge(world: World, seconds: float = 30.0) -> None:
    """Heal everything, wait, and expect agreement or a legitimate block."""
    world.faults.heal()
    for host in living(world):
        if host.paused:
            world.resume(host)
    world.run_until(lambda: settled(world), seconds, expect=False)
    assert settled(world) or blocked_for_good(world), list(world.hosts.values())
