"""Gloo groups with an accelerator: everything goes by Gloo, and large buckets by the accelerator where all members have one.

``base`` is the interface of an accelerator; ``framework`` and ``group`` combine one with Gloo; ``rehearsal`` is one for CPU
tensors that behaves as badly as a GPU's.
"""
