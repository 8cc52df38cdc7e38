"""Operations on tensors on devices, by a group that knows CPU memory alone: what a program does with ``ft.group``.

``group`` copies a tensor to CPU memory before the operation begins, ``work`` copies the result back after it has ended, and
``rows`` keeps the CPU memory.
"""
