"""What every store must do, whatever stands behind it. A store's test module subclasses ``Conformance`` and gives a fixture:

    class TestFileStore(Conformance):
        @pytest.fixture
        def place(self, tmp_path: Path) -> Iterator[Place]: ...

A ``Place`` is empty when a test gets it. Handles are opened by ``store_at`` as members do; races are run by processes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import Any

import pytest

from consensus.errors import AmbiguousWriteError, ConfigError, StoreError
from consensus.storage.store import MAX_VALUE, Created
from tests.harness.basics import TIMEOUT

from .place import Place, race

_ROUNDS = 60
_TIMEOUT = 60.0


class Conformance:
    """The tests."""

    # Values

    async def test_what_was_never_written_is_none(self, place: Place) -> None:
        async with place.store() as store:
            assert await store.read("views/1") is None
            assert await store.list("views/") == {}
            assert await store.compacted("views") == 0

    @pytest.mark.parametrize("value", [b"", b"\0", b"line\r\n\0end", bytes(range(256)) * 5, b"x" * MAX_VALUE])
    async def test_values_are_any_bytes(self, place: Place, value: bytes) -> None:
        async with place.store() as store, place.store() as other:
            assert await store.create("views/1", value) is Created.DONE
            await store.write("members/a", value)
            assert await other.read("views/1") == await other.read("members/a") == value
            assert await other.list("views/") == {"views/1": value}

    async def test_a_value_too_large_is_refused_and_nothing_is_done(self, place: Place) -> None:
        async with place.store() as store:
            with pytest.raises(ConfigError, match="1048576 are the most"):
                await store.create("views/1", b"x" * (MAX_VALUE + 1))
            with pytest.raises(ConfigError, match="1048576 are the most"):
                await store.write("views/1", b"x" * (MAX_VALUE + 1))
            assert await store.read("views/1") is None

    @pytest.mark.parametrize("key", ["", "/", "a/", "/a", "a//b", "..", "a/../b", ".a", "A", "a b", "a\0", "ä", "a\n", "a*"])
    async def test_a_malformed_key_is_refused(self, place: Place, key: str) -> None:
        async with place.store() as store:
            for attempt in (store.create(key, b""), store.read(key), store.write(key, b""), store.delete("a", key)):
                with pytest.raises(ConfigError, match="is no key"):
                    await attempt

    @pytest.mark.parametrize("prefix", ["", "/", "views", "/views/", "../", "a*/"])
    async def test_a_malformed_prefix_is_refused(self, place: Place, prefix: str) -> None:
        async with place.store() as store:
            with pytest.raises(ConfigError, match="is no prefix"):
                await store.list(prefix)

    async def test_write_replaces_and_delete_removes(self, place: Place) -> None:
        async with place.store() as store, place.store() as other:
            await store.write("members/a", b"1")
            await other.write("members/a", b"2", expires=60)
            assert await store.read("members/a") == b"2"
            await store.delete("members/a")
            assert await other.read("members/a") is None

    async def test_delete_of_what_is_not_there_is_no_error(self, place: Place) -> None:
        async with place.store() as store:
            await store.delete()
            await store.delete("members/a", "views/1")
            await store.write("members/b", b"")
            await store.delete("members/a", "members/b", "members/b")
            await store.delete("members/b")
            assert await store.list("members/") == {}

    async def test_a_deleted_key_can_be_created_again(self, place: Place) -> None:
        async with place.store() as store:
            assert await store.create("views/1", b"1") is Created.DONE
            await store.delete("views/1")
            assert await store.create("views/1", b"2") is Created.DONE
            assert await store.read("views/1") == b"2"

    # Listing

    async def test_a_listing_is_sorted_and_of_its_prefix_only(self, place: Place) -> None:
        keys = ["a/b/c", "a/b-c", "a/a", "a/0", "a/b.c", "a/b_c/d", "a/10", "a/9"]
        async with place.store() as store:
            for key in [*keys, "ab/c", "b/a", "a-/x", "aa"]:
                await store.write(key, key.encode())
            assert list((await store.list("a/")).items()) == [(key, key.encode()) for key in sorted(keys)]
            assert list(await store.list("a/b/")) == ["a/b/c"]
            assert await store.list("c/") == {}

    async def test_a_key_that_is_rewritten_all_the_time_is_in_every_listing(self, place: Place) -> None:
        """Else its owner would seem to have left."""
        keys = [f"members/{number:02}" for number in range(20)]
        async with place.store() as writer, place.store() as reader:
            for key in keys:
                await writer.write(key, b"0")
            over = False

            async def rewrite() -> None:
                beat = 0
                while not over:
                    beat += 1
                    await asyncio.gather(*(writer.write(key, b"%d" % beat, expires=60) for key in keys[::4]))

            beating = asyncio.create_task(rewrite())
            for _ in range(40):
                assert list(await reader.list("members/")) == keys
            over = True
            await beating

    # Exclusive creation

    async def test_a_second_creation_changes_nothing(self, place: Place) -> None:
        async with place.store() as store, place.store() as other:
            assert await store.create("views/1", b"first") is Created.DONE
            assert await other.create("views/1", b"second") is Created.EXISTS
            assert await store.create("views/1", b"first") is Created.EXISTS
            assert await other.read("views/1") == b"first"

    async def test_one_handle_can_race_with_itself(self, place: Place) -> None:
        async with place.store() as store:
            results = await asyncio.gather(*(store.create("views/1", b"%d" % number) for number in range(16)))
            assert results.count(Created.DONE) == 1
            assert await store.read("views/1") == b"%d" % results.index(Created.DONE)

    def test_of_several_processes_exactly_one_creates(self, place: Place) -> None:
        """And each that did not reads, at once and whole, what the one wrote."""
        rounds = _ROUNDS
        results = race(place, "create", rounds)
        winners = Counter[int]()
        for tries in zip(*results, strict=True):
            outcomes = [outcome for outcome, _ in tries]
            assert sorted(outcomes) == ["DONE", *["EXISTS"] * (len(tries) - 1)]
            winner = outcomes.index("DONE")
            assert [seen for _, seen in tries] == [winner] * len(tries)
            winners[winner] += 1
        assert winners.total() == rounds

    async def test_a_lost_answer_is_resolved_by_reading(self, place: Place) -> None:
        async with place.store() as store, place.store() as other:
            await store.create("views/0", b"")  # a server may answer to the first one that it does not know the command yet
            with place.losing_answers(store), pytest.raises(AmbiguousWriteError):
                await store.create("views/1", b"mine")
            assert await other.read("views/1") == b"mine"
            assert await store.create("views/1", b"again") is Created.EXISTS
            assert await store.read("views/1") == b"mine"

    # Compaction

    async def test_a_compacted_revision_only_rises(self, place: Place) -> None:
        async with place.store() as store, place.store() as other:
            assert await store.compact("views", 5) == 5
            assert await other.compact("views", 3) == 5
            assert await other.compact("views", 5) == 5
            assert await other.compacted("views") == 5
            assert await store.compact("views", 1_000_000_007) == 1_000_000_007
            assert await other.compacted("views") == 1_000_000_007
            assert await other.compacted("steps") == 0

    async def test_a_compacted_revision_is_no_key(self, place: Place) -> None:
        async with place.store() as store:
            await store.compact("views", 5)
            await store.write("views/5", b"")
            assert await store.read("views") is None
            assert list(await store.list("views/")) == ["views/5"]
            await store.delete("views")
            assert await store.compacted("views") == 5

    async def test_nothing_is_created_below_the_compacted_revision(self, place: Place) -> None:
        async with place.store() as store, place.store() as other:
            assert await other.create("views/4", b"", number=4, series="views") is Created.DONE
            await store.compact("views", 5)
            await store.delete("views/4")
            assert await other.create("views/4", b"", number=4, series="views") is Created.BELOW
            assert await other.read("views/4") is None
            assert await other.create("views/5", b"5", number=5, series="views") is Created.DONE
            assert await other.create("views/5", b"x", number=5, series="views") is Created.EXISTS
            assert await other.create("steps/1", b"", number=1, series="steps") is Created.DONE
            assert await other.create("views/3", b"") is Created.DONE

    def test_a_compacted_revision_never_falls_while_several_processes_raise_it(self, place: Place) -> None:
        """Each compacts to numbers of its own, up and down, and reads: nobody ever sees it fall, or below its own number."""
        results = race(place, "compact", _ROUNDS)
        highest = max(asked for result in results for asked, _, _ in result)
        for result in results:
            seen = 0
            for asked, compacted, read in result:
                assert max(seen, asked) <= compacted <= read <= highest
                seen = read

        async def finally_the_highest() -> None:
            async with place.store() as store:
                assert await store.compacted("views") == highest

        asyncio.run(finally_the_highest())

    def test_what_is_created_while_it_is_compacted_is_there_or_was_never(self, place: Place) -> None:
        """One compacts above ``views/N`` while others create it: it stands if one was told so, else nothing is left."""
        rounds = list(zip(*race(place, "create_and_compact", _ROUNDS), strict=True))
        created = [[outcome for outcome in tries if outcome != "COMPACTED"] for tries in rounds]
        assert all(outcomes.count("DONE") <= 1 for outcomes in created)
        done = [f"views/{turn}" for turn, outcomes in enumerate(created) if "DONE" in outcomes]

        async def finally_there() -> None:
            async with place.store() as store:
                assert list(await store.list("views/")) == sorted(done)

        asyncio.run(finally_there())

    def test_what_was_cleaned_away_never_comes_back(self, place: Place) -> None:
        """One compacts above ``views/N`` and then deletes it, while others create it: it was there and is gone, or its creator
        learned that it is below the compacted revision. (Without a second look at that revision some of them stay.)
        """
        race(place, "create_and_clean", _ROUNDS)

        async def finally_none() -> None:
            async with place.store() as store:
                assert list(await store.list("views/")) == []

        asyncio.run(finally_none())

    # Jobs, counting, closing

    async def test_jobs_do_not_see_each_other(self, place: Place) -> None:
        jobs = ["a", "A", "a/b", "a/", "a.b", ".", "..", "a%2Fb", "a:b", "a{b}", "a*", "ä" * 64, "\N{CAT}" * 64, "~", "a "]
        for job in jobs:
            async with place.store(job) as store:
                assert await store.list("views/") == {}, job
                assert await store.compacted("views") == 0
                assert await store.create("views/1", job.encode(), number=1, series="views") is Created.DONE
                await store.compact("views", 2)
        for job in jobs:
            async with place.store(job) as store:
                assert await store.list("views/") == {"views/1": job.encode()}
                assert await store.compacted("views") == 2

    async def test_operations_are_counted(self, place: Place) -> None:
        async with place.store() as store:

            async def cost(operation: Awaitable[Any]) -> int:
                before = store.operations
                await operation
                return store.operations - before

            assert await cost(store.list("members/")) == 1
            for number in range(5):
                assert await cost(store.write(f"members/{number}", b"")) == 1
            assert await cost(store.list("members/")) == 5
            assert await cost(store.read("members/1")) == 1
            assert await cost(store.read("members/9")) == 1
            assert await cost(store.create("views/1", b"")) == 1
            assert await cost(store.delete("members/1")) == 1
            assert await cost(store.compacted("views")) == 1
            assert 1 <= await cost(store.compact("views", 1)) <= 2
            assert 1 <= await cost(store.create("views/2", b"", number=2, series="views")) <= 3

    async def test_close_is_idempotent_and_final(self, place: Place) -> None:
        store = place.make()
        await store.close()
        store = place.make()
        await store.open()
        await store.write("members/a", b"")
        await store.close()
        await store.close()
        for attempt in (
            store.read("members/a"),
            store.list("members/"),
            store.write("members/a", b""),
            store.compacted("views"),
        ):
            with pytest.raises(StoreError):
                await attempt

    async def test_a_watch_ends_when_the_store_is_closed(self, place: Place) -> None:
        async with place.store() as store:

            async def follow() -> None:
                async for _ in store.watch("members/"):
                    pass

            watching = asyncio.create_task(follow())
            await asyncio.sleep(0.05)
            assert not watching.done()
        async with asyncio.timeout(TIMEOUT):
            await watching

    async def test_it_is_all_there_for_the_next_process(self, place: Place) -> None:
        async with place.store() as store:
            await store.create("views/1", b"1")
            await store.compact("views", 1)
        async with place.store() as store:
            assert await store.list("views/") == {"views/1": b"1"}
            assert await store.compacted("views") == 1

    async def test_wiped_under_way(self, place: Place) -> None:
        """What was there is not found any more: None, or an error; never an old value, and no crash."""
        async with place.store() as store:
            await store.create("views/1", b"1")
            await store.compact("views", 1)
            place.wipe()
            found = await asyncio.gather(
                store.read("views/1"), store.list("views/"), store.compacted("views"), return_exceptions=True
            )
            changed = await asyncio.gather(
                store.write("members/a", b""), store.delete("members/a"), store.compact("views", 2), return_exceptions=True
            )
            for answer, nothing in zip(found, (None, {}, 0), strict=True):
                assert isinstance(answer, StoreError) or answer == nothing
            for answer in (*found, *changed):
                assert not isinstance(answer, BaseException) or (isinstance(answer, StoreError) and "\n" not in str(answer))
        async with place.store() as store:
            assert await store.read("views/1") is None
