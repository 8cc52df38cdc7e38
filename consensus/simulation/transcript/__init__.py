"""A simulated history as a page of text that a person reads from top to bottom."""

from .transcript import Transcript

__all__ = ["Transcript"]
