"""Bytes <-> envelopes: the wire format, and the only place where bytes from the network become values.

A packet is a fixed header (magic, protocol version, length of the job, job) and one msgpack array ``[sender, host, port, type
code, field, field, ...]``. The header comes first and needs no decoding, so a packet of another job or version is recognised,
and named, without looking at the rest. The schema of the fields is derived once from the annotations of ``messages`` (type
code: index in ``MESSAGES``; fields positional; enums by value; nested dataclasses as arrays) and compiled into closures. It is
checked exactly: a bool is no int, a list of the wrong length is no message, and remaining bytes are an error. Sizes are bounded
before anything is built from them.

Authentication wraps these bytes as a whole: see ``envelope``.
"""

from __future__ import annotations

import struct
import types
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any

import msgpack

from ..config import MAX_JOB, PROTOCOL_VERSION
from ..errors import CodecError, ForeignJobError, ForeignVersionError
from ..member import Member
from ..messages import MAX_DETAIL, MESSAGES, Envelope
from ..view import Reason, View
from .facts import MAX_FACTS, MAX_TEXT

MAX_BYTES = 16 * 1024 * 1024
"""Bytes of the largest packet; a packet too long for one message is sent in pieces (see ``pieces``)."""

MAX_DATAGRAM = 65_536
"""Bytes of the largest packet over UDP."""

_MAGIC = 0xF7
_HEADER = struct.Struct(">BBH")
_MAX_ID = 64
_MAX_HOST = 255
_INT_LIMIT = 1 << 63

_Encode = Callable[[Any], Any]
_Decode = Callable[[Any], Any]


class Codec:
    """Encodes and decodes the envelopes of one job. Not thread-safe: one codec for each thread."""

    def __init__(self, job: str, *, max_members: int = 16384) -> None:
        """``job``: packets of other jobs raise ``ForeignJobError``. ``max_members``: longest list that is accepted."""
        self._job = job
        self._header = _header(job)
        self._max_members = max(max_members, MAX_FACTS)
        self._packer = msgpack.Packer(use_bin_type=True, autoreset=True)
        self._encoders, self._decoders = _compiled(self._max_members)

    def encode(self, envelope: Envelope) -> bytes:
        """The packet for ``envelope``; raises CodecError if no receiver could accept it (size, type, job).

        Members are not looked at again: what the layers above want them to tell has passed ``check_facts``.
        """
        if envelope.job != self._job:
            raise CodecError(f"an envelope of job {envelope.job!r} was given to the codec of job {self._job!r}")
        message = envelope.message
        try:
            code, encode = self._encoders[type(message)]
            host, port = envelope.address
            body: bytes = self._packer.pack((envelope.sender, host, port, code, *encode(message)))
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            self._packer.reset()
            raise CodecError(f"cannot encode {type(message).__name__}: {error}") from error
        if len(self._header) + len(body) > MAX_BYTES:
            raise CodecError(f"{type(message).__name__} takes {len(body)} bytes; the limit is {MAX_BYTES}")
        return self._header + body

    def decode(self, packet: bytes, *, limit: int = MAX_BYTES) -> Envelope:
        """The envelope in ``packet``; raises CodecError if it is anything else, or longer than ``limit`` bytes."""
        if len(packet) > limit:
            raise CodecError(f"{len(packet)} bytes; the limit is {limit}")
        if not packet.startswith(self._header):
            raise _foreign(packet)
        try:
            body = msgpack.unpackb(
                memoryview(packet)[len(self._header) :],
                raw=False,
                use_list=False,
                strict_map_key=True,
                max_str_len=MAX_TEXT,
                max_bin_len=limit,
                max_array_len=self._max_members,
                max_map_len=0,
                max_ext_len=0,
            )
        except Exception as error:  # msgpack's errors have no common root, and any of them means the same here
            raise CodecError(f"no msgpack: {type(error).__name__}: {error}") from error
        if type(body) is not tuple or len(body) < 4:
            raise CodecError("no envelope")
        sender, host, port, code = body[:4]
        _check_identity(sender, host, port)
        if type(code) is not int or not 0 <= code < len(self._decoders):
            raise CodecError(f"unknown message type {code!r}")
        return Envelope(self._job, sender, (host, port), self._decoders[code](body[4:]))


def _header(job: str) -> bytes:
    encoded = job.encode()
    return _HEADER.pack(_MAGIC, PROTOCOL_VERSION, len(encoded)) + encoded


def _foreign(packet: bytes) -> CodecError:
    """Why ``packet`` does not start with this job's header."""
    if len(packet) < 2 or packet[0] != _MAGIC:
        return CodecError("no packet of this protocol")
    if packet[1] != PROTOCOL_VERSION:
        return ForeignVersionError(packet[1])
    if len(packet) < _HEADER.size:
        return CodecError("truncated header")
    size = _HEADER.unpack_from(packet)[2]
    end = _HEADER.size + size
    if len(packet) < end or not 0 < size <= 4 * MAX_JOB:
        return CodecError("truncated header")
    try:
        return ForeignJobError(packet[_HEADER.size : end].decode())
    except UnicodeDecodeError:
        return CodecError("the job is no text")


def _check_identity(member_id: object, host: object, port: object) -> None:
    if type(member_id) is not str or not 0 < len(member_id) <= _MAX_ID:
        raise CodecError("a member id is malformed")
    if type(host) is not str or not 0 < len(host) <= _MAX_HOST:
        raise CodecError("a host is malformed")
    if type(port) is not int or not 0 < port <= 65535:
        raise CodecError("a port is out of range")


def _check_member(member: Member) -> None:
    _check_identity(member.id, member.host, member.port)
    if len(member.meta) > MAX_FACTS:
        raise CodecError(f"a member with more than {MAX_FACTS} facts")


def _check_view(view: View) -> None:
    if not view.consistent():
        raise CodecError("a view whose id is not the hash of its members")


def _check_reason(reason: Reason) -> None:
    if len(reason.detail) > MAX_DETAIL or len(reason.source) > _MAX_ID:
        raise CodecError(f"a reason of more than {MAX_DETAIL} characters")


_CHECKS: dict[type, Callable[[Any], None]] = {Member: _check_member, View: _check_view, Reason: _check_reason}
"""Checks of a value beyond the types of its fields."""


@cache
def _compiled(max_items: int) -> tuple[dict[type, tuple[int, _Encode]], tuple[_Decode, ...]]:
    """Encoders and decoders of all messages, shared by all codecs: making them costs more than coding a thousand messages."""
    schema = _Schema(max_items)
    encoders = {cls: (code, schema.fields_encoder(cls)) for code, cls in enumerate(MESSAGES)}
    return encoders, tuple(schema.fields_decoder(cls) for cls in MESSAGES)


class _Schema:
    """Compiles annotations into closures. ``None`` as an encoder means that the value is packed unchanged."""

    def __init__(self, max_items: int) -> None:
        self._max_items = max_items
        # Many messages hold the same values. No dataclass holds another of its own kind.
        self.fields_encoder = cache(self._fields_encoder)
        self.fields_decoder = cache(self._fields_decoder)

    def _fields_encoder(self, cls: type) -> _Encode:
        """From an instance of the dataclass ``cls`` to the tuple of its encoded fields."""
        names = [item.name for item in fields(cls) if item.init]
        hints = _hints(cls)
        convert = [(index, enc) for index, name in enumerate(names) if (enc := self._encoder(hints[name])) is not None]
        get: Callable[[Any], tuple[Any, ...]]
        if len(names) == 1:
            name = names[0]

            def get(value: Any) -> tuple[Any, ...]:
                return (getattr(value, name),)

        else:
            get = attrgetter(*names)
        if not convert:
            return get

        def encode(value: Any) -> list[Any]:
            row = list(get(value))
            for index, enc in convert:
                row[index] = enc(row[index])
            return row

        return encode

    def _fields_decoder(self, cls: type) -> _Decode:
        """From the tuple of encoded fields to an instance of ``cls``."""
        hints = _hints(cls)
        decoders = [self._decoder(hints[item.name]) for item in fields(cls) if item.init]
        count, title, check = len(decoders), cls.__name__, _CHECKS.get(cls)
        has_id = cls is View

        def decode(row: Any) -> Any:
            if type(row) is not tuple or len(row) != count:
                raise CodecError(f"{title} takes {count} fields")
            if has_id and not row[-1]:  # an empty id would be derived, and so always be consistent
                raise CodecError("a view without an id")
            value = cls(*[decode_field(item) for decode_field, item in zip(decoders, row, strict=True)])
            if check is not None:
                check(value)
            return value

        return decode

    def _encoder(self, hint: Any) -> _Encode | None:
        """Converts a value annotated ``hint`` to types that msgpack knows; None: the value is packed unchanged."""
        optional, hint = _split_optional(hint)
        inner: _Encode | None = None
        if typing.get_origin(hint) is tuple:
            inner = self._tuple_encoder(typing.get_args(hint))
        elif isinstance(hint, type) and issubclass(hint, Enum):
            inner = _enum_value
        elif isinstance(hint, type) and is_dataclass(hint):
            inner = self.fields_encoder(hint)
        if inner is None or not optional:
            return inner
        encode = inner
        return lambda value: None if value is None else encode(value)

    def _tuple_encoder(self, args: tuple[Any, ...]) -> _Encode | None:
        if len(args) == 2 and args[1] is Ellipsis:
            item = self._encoder(args[0])
            return None if item is None else lambda value: [item(each) for each in value]
        encoders = [self._encoder(arg) for arg in args]
        if all(enc is None for enc in encoders):
            return None
        return lambda value: [each if enc is None else enc(each) for enc, each in zip(encoders, value, strict=True)]

    def _decoder(self, hint: Any) -> _Decode:
        """The checked inverse of ``_encoder``."""
        optional, hint = _split_optional(hint)
        if typing.get_origin(hint) is tuple:
            decode = self._tuple_decoder(typing.get_args(hint))
        elif hint in _PLAIN:
            decode = _PLAIN[hint]
        elif isinstance(hint, type) and issubclass(hint, Enum):
            decode = _enum_decoder(hint)
        elif isinstance(hint, type) and is_dataclass(hint):
            decode = self.fields_decoder(hint)
        else:
            raise TypeError(f"messages may not hold {hint!r}")
        if not optional:
            return decode
        return lambda value: None if value is None else decode(value)

    def _tuple_decoder(self, args: tuple[Any, ...]) -> _Decode:
        if len(args) == 2 and args[1] is Ellipsis:
            item, most = self._decoder(args[0]), self._max_items

            def decode_many(value: Any) -> tuple[Any, ...]:
                if type(value) is not tuple or len(value) > most:
                    raise CodecError(f"expected an array of at most {most}")
                return tuple([item(each) for each in value])

            return decode_many
        items = [self._decoder(arg) for arg in args]

        def decode_fixed(value: Any) -> tuple[Any, ...]:
            if type(value) is not tuple or len(value) != len(items):
                raise CodecError(f"expected an array of {len(items)}")
            return tuple([decode(each) for decode, each in zip(items, value, strict=True)])

        return decode_fixed


_hints = cache(typing.get_type_hints)


def _split_optional(hint: Any) -> tuple[bool, Any]:
    """Whether None is allowed, and the rest of the annotation."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return False, hint
    rest = [arg for arg in typing.get_args(hint) if arg is not type(None)]
    if len(rest) != 1 or len(typing.get_args(hint)) != 2:
        raise TypeError(f"messages may not hold the union {hint!r}")
    return True, rest[0]


def _enum_value(value: Any) -> Any:
    return value.value


def _enum_decoder(cls: type[Enum]) -> _Decode:
    by_value = {item.value: item for item in cls}

    def decode(value: Any) -> Enum:
        if type(value) is not str or value not in by_value:
            raise CodecError(f"no {cls.__name__}: {value!r:.40}")
        return by_value[value]

    return decode


def _text(value: Any) -> str:
    if type(value) is not str:
        raise CodecError(f"expected text, got {type(value).__name__}")
    return value


def _integer(value: Any) -> int:
    if type(value) is not int or not -_INT_LIMIT <= value < _INT_LIMIT:
        raise CodecError(f"expected a 64-bit integer, got {type(value).__name__}")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise CodecError(f"expected a bool, got {type(value).__name__}")
    return value


def _binary(value: Any) -> bytes:
    if type(value) is not bytes:
        raise CodecError(f"expected bytes, got {type(value).__name__}")
    return value


_PLAIN: dict[type, _Decode] = {str: _text, int: _integer, bool: _flag, bytes: _binary}
