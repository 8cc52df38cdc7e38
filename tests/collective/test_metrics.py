"""How a scrape shows the groups of a collective."""

from __future__ import annotations

from consensus.runtime.net.metrics import render


def test_a_scrape_shows_every_group() -> None:
    group = {"paths": ["ring", "tcp"], "operations": 3, "sent_bytes": 10, "received_bytes": 20, "queued_out": 1, "queued_in": 0}
    text = render({"job": "j", "member": "m", "ftlib": {"collective": {"a+b": group}}}).decode()
    for line in (
        'ftlib_collective_operations_total{group="a+b",job="j",member="m"} 3.0',
        'ftlib_collective_bytes_total{direction="in",group="a+b",job="j",member="m"} 20.0',
        'ftlib_collective_queued{direction="out",group="a+b",job="j",member="m"} 1.0',
        'ftlib_collective_path{group="a+b",job="j",member="m",path="ring"} 1.0',
    ):
        assert line in text, text
    assert "collective" not in render({"job": "j", "ftlib": {"collective": {}}}).decode()
