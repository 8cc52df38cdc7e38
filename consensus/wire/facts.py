"""What a member's facts may be so that others can read them. Apart from the codec, which takes long to import."""

from __future__ import annotations

from ..config import is_unicode
from ..errors import CodecError

MAX_TEXT = 4096
"""Bytes of a text in a packet."""
MAX_FACTS = 64

Facts = tuple[tuple[str, str], ...]


def check_facts(facts: Facts) -> None:
    """Raise CodecError if no receiver could accept a member with these."""
    if len(facts) > MAX_FACTS:
        raise CodecError(f"{len(facts)} facts of a member: at most {MAX_FACTS} are sent")
    for pair in facts:
        for text in pair:
            if type(text) is not str:
                raise CodecError(f"the facts of a member are texts, and {pair[0]!r:.40} has {type(text).__name__}")
            if not is_unicode(text):
                raise CodecError(f"the fact {pair[0]!r:.40} of a member is no text: {text!r:.40} is no Unicode")
            size = len(text.encode())
            if size > MAX_TEXT:
                raise CodecError(f"the fact {pair[0]!r:.40} of a member has {size} bytes: at most {MAX_TEXT} are sent")
