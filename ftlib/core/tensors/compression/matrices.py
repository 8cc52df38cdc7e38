"""Linear algebra whose result has the same bits on every processor: sums, products and quotients of elements alone.

The libraries behind torch's matrix products choose the order of their additions by processor and number of threads.
"""

from __future__ import annotations

import torch

_LOST = 1e-8
"""Part of a column's square that is left where the column depends on those before it; what is left is rounding then."""


def orthonormal(columns: torch.Tensor) -> torch.Tensor:
    """The columns of each matrix in a batch of shape (matrices, rows, columns), orthonormal; in float32.

    Gram-Schmidt in float64. A column that depends on the others becomes zeros. Inf and nan make nan.
    """
    basis = columns.transpose(1, 2).contiguous().double()  # the columns are rows now
    for number in range(basis.shape[1]):
        column = basis[:, number]
        before = _sum(column * column)
        for earlier in range(number):
            column.sub_(basis[:, earlier] * _sum(basis[:, earlier] * column)[:, None])
        after = _sum(column * column)
        factor = after.sqrt().reciprocal()
        factor.masked_fill_(after <= _LOST * before, 0.0)
        column.mul_(factor[:, None])
    return basis.transpose(1, 2).float().contiguous()


def write_product(left: torch.Tensor, right: torch.Tensor, product: torch.Tensor, scratch: torch.Tensor) -> None:
    """Write ``left @ right`` to ``product``. ``scratch``: working memory, at least as many elements as a row has.

    By sums of products of the columns and rows, so many rows at a time as ``scratch`` holds.
    """
    rows, columns = product.shape
    many = scratch.numel() // columns
    for start in range(0, rows, many):
        there = product[start : start + many]
        term = scratch[: there.numel()].view(there.shape)
        for number in range(left.shape[1]):
            torch.mul(left[start : start + many, number, None], right[number], out=term if number else there)
            if number:
                there.add_(term)


def _sum(rows: torch.Tensor) -> torch.Tensor:
    """The sum of each row: halves are added until one element is left. Changes ``rows``."""
    count = rows.shape[1]
    while count > 1:
        half = (count + 1) // 2
        rows[:, : count - half].add_(rows[:, half:count])
        count = half
    return rows[:, 0].clone()
