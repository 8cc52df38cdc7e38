"""What became of a player: what it told its user at the end, and whether it had anything to tell."""

from __future__ import annotations

from .stage import Player

__all__ = ["healthy", "one_line"]


def one_line(error: str) -> str:
    assert error
    assert "\n" not in error, error
    assert len(error) < 400, error
    return error


def healthy(*players: Player) -> None:
    """Nothing happened to these that they would tell their user about."""
    for player in players:
        assert player.code in (None, 0), (player, player.error)
        assert "Traceback" not in player.output(), player.output()
