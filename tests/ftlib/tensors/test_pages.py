"""Pages that are used again: never while anything refers to them, and no more than a bound is kept."""

from __future__ import annotations

import torch

from ftlib.common.memory import Pages

ROW = 1 << 20
"""Elements of four bytes: more than a huge page."""


def test_a_row_is_used_again_once_nothing_refers_to_it() -> None:
    pages = Pages()
    row = pages.row(ROW, torch.float32)
    at, part = row.data_ptr(), row[5:7]
    del row
    other = pages.row(ROW, torch.float32)
    assert other.data_ptr() != at, "a view holds it"
    del part
    again = pages.row(2 * ROW, torch.float16)
    assert again.data_ptr() == at
    assert again.dtype is torch.float16 and again.numel() == 2 * ROW
    assert pages.row(ROW // 2, torch.float32).data_ptr() not in (at, other.data_ptr()), "another size"


def test_small_rows_and_empty_ones() -> None:
    pages = Pages()
    assert pages.row(0, torch.float32).numel() == 0
    assert pages.row(10, torch.int64).shape == (10,)


def test_only_so_much_is_kept() -> None:
    pages = Pages()
    rows = [pages.row(32 << 20, torch.uint8) for _ in range(10)]
    places = {row.data_ptr() for row in rows}
    del rows
    found = [pages.row(32 << 20, torch.uint8) for _ in range(10)]
    assert sum(row.data_ptr() in places for row in found) >= 8
    assert len(pages._free) == 0
    del found
    assert sum(memory.nbytes for memory in pages._free) <= 256 << 20
