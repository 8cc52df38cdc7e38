"""What tensors on GPUs go by, from one member to another, beside the link that carries everything else.

``choice`` decides (pure), ``carriers`` carry, ``store`` lets two build a process group over their link, ``freight`` has it all
for one stream. None of the ways between GPUs has run on GPUs yet.
"""
