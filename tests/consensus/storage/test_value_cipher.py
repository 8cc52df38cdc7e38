"""Values in a store: whose they are, and for which place."""

from __future__ import annotations

import pytest

from consensus.errors import CodecError
from consensus.messages import Envelope, Lease, Stranger, ViewRecord
from consensus.storage.value_cipher import OVERHEAD, ValueCipher
from consensus.wire.codec import Codec
from consensus.wire.keys import Key, KeyRing

from .records import config, founding, key, lease, member

OLD, NEW = "the first secret of all", "the second secret of all"


def cipher(*secrets: str, job: str = "job", index: int = 0) -> ValueCipher:
    return ValueCipher(config(job), member(index), KeyRing(secrets) if secrets else None)


@pytest.mark.parametrize("secrets", [(), (OLD,), (NEW, OLD)])
def test_there_and_back(secrets: tuple[str, ...]) -> None:
    record = founding()
    value = cipher(*secrets).wrap(key(1), record)
    assert cipher(*secrets, index=1).unwrap(key(1), value, ViewRecord) == record
    beat = lease(1, 7)
    assert cipher(*secrets).unwrap("leases/x", cipher(*secrets).wrap("leases/x", beat), Lease) == beat


def test_without_a_secret_it_is_what_the_codec_makes() -> None:
    value = cipher().wrap(key(1), founding())
    assert Codec("job").decode(value) == Envelope("job", member(0).id, member(0).address, founding())


def test_sealed_it_shows_nothing_and_is_never_the_same() -> None:
    plain, sealed = cipher().wrap(key(1), founding()), cipher(OLD).wrap(key(1), founding())
    assert len(sealed) == len(plain) + OVERHEAD
    assert b"127.0.0.1" in plain and b"127.0.0.1" not in sealed
    assert sealed != cipher(OLD).wrap(key(1), founding())


def test_the_first_seals_and_all_open() -> None:
    value = cipher(NEW, OLD).wrap(key(1), founding())
    assert cipher(OLD, NEW).unwrap(key(1), value, ViewRecord) == founding()
    assert Key(NEW).id in value
    with pytest.raises(CodecError, match=f"{key(1)} cannot be read: it is sealed with {Key(NEW).id.hex()}, a secret"):
        cipher(OLD).unwrap(key(1), value, ViewRecord)


def test_a_ring_that_changes(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("ring") / "secret"
    path.write_text(f"{OLD}\n")
    path.chmod(0o600)
    ring = KeyRing((), path)
    kept = ValueCipher(config(), member(0), ring)
    before = kept.wrap(key(1), founding())
    path.write_text(f"{NEW}\n{OLD}\n")
    assert ring.renew() is not None
    assert kept.unwrap(key(1), before, ViewRecord) == founding()
    assert cipher(NEW).unwrap(key(1), kept.wrap(key(1), founding()), ViewRecord) == founding()


def test_not_in_another_place_and_not_in_another_job() -> None:
    value = cipher(OLD).wrap(key(1), founding())
    for other, place in ((cipher(OLD), key(2)), (cipher(OLD, job="another"), key(1))):
        with pytest.raises(CodecError, match="was not sealed by a member of this job for this place"):
            other.unwrap(place, value, ViewRecord)
    with pytest.raises(CodecError, match="the sender belongs to job 'job'"):
        cipher(job="another").unwrap(key(1), cipher().wrap(key(1), founding()), ViewRecord)


def test_every_bit_counts() -> None:
    value = cipher(OLD).wrap(key(1), founding())
    for index in (*range(OVERHEAD + 8), len(value) - 1):
        changed = bytearray(value)
        changed[index] ^= 1
        with pytest.raises(CodecError, match=f"^{key(1)} cannot be read: "):
            cipher(OLD).unwrap(key(1), bytes(changed), ViewRecord)


@pytest.mark.parametrize("length", range(0, 80, 7))
def test_what_is_cut_short(length: int) -> None:
    for secrets in ((), (OLD,)):
        value = cipher(*secrets).wrap(key(1), founding())[:length]
        with pytest.raises(CodecError, match=f"^{key(1)} cannot be read: "):
            cipher(*secrets).unwrap(key(1), value, ViewRecord)


def test_some_have_a_secret_and_some_have_none() -> None:
    with pytest.raises(CodecError, match="this member has no secret: give it the secret of the job"):
        cipher().unwrap(key(1), cipher(OLD).wrap(key(1), founding()), ViewRecord)
    with pytest.raises(CodecError, match="is not sealed, and members of this job have a secret"):
        cipher(OLD).unwrap(key(1), cipher().wrap(key(1), founding()), ViewRecord)


def test_only_what_is_asked_for() -> None:
    value = Codec("job").encode(Envelope("job", member(0).id, member(0).address, Stranger(1, "")))
    with pytest.raises(CodecError, match=f"{key(1)} holds a Stranger where a ViewRecord belongs"):
        cipher().unwrap(key(1), value, ViewRecord)


def test_what_no_store_takes() -> None:
    with pytest.raises(CodecError, match="would take"):
        cipher().wrap("leases/x", Lease(member(0), 1, progress=bytes(1 << 20)))
