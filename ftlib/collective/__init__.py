"""Point-to-point messages in strict order, broadcast and named queues, between members that may die.

    from ftlib import Collective

    group = Collective(ft).create_collective_group(["trainer", "rollout-3"])
    group.send({"weights": tensors})

A group stands on streams that ``consensus`` dials and proves: no process group, no store. The public names are at the top of
``ftlib``; here are rooms only, so that one can be imported without the others. See docs/collective.md.
"""
