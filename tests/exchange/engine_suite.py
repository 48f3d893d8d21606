"""What every engine of the exchange must do. An engine's test gives a function that opens it on the same place again:

class TestSqlite(EngineSuite):
    @asynccontextmanager
    async def opened(self, place): ...
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from exchange.model import (
    Appended,
    Draft,
    Interest,
    Mark,
    OriginId,
    Profile,
    RetentionBounds,
    SessionKey,
    SessionState,
)
from exchange.ports import Log, Sessions, Wanted
from exchange.selection import parse_selector
from identifiers import DEFAULT_NAMING, ItemId

ITEM = DEFAULT_NAMING.of_user("a@a.example")
OTHER = DEFAULT_NAMING.of_user("b@a.example")
FAR, FARTHER = b"far".ljust(16), b"farther".ljust(16)
KEY = SessionKey("notes", "ana")
MUCH = 1 << 30


def draft(
    body: bytes,
    origin: OriginId | None = None,
    *,
    item: ItemId = ITEM,
    profile: Profile = Profile.DOCUMENT,
    known: Sequence[OriginId] = (),
    at: int = 0,
) -> Draft:
    return Draft(item, "a@a.example", profile, "text/plain", body, (("self", "x"),), at, 0, origin, tuple(known))


def from_far(number: int, gateway: bytes = FAR) -> OriginId:
    return OriginId(gateway, number)


class EngineSuite(ABC):
    @abstractmethod
    def opened(self, place: Path) -> AbstractAsyncContextManager[tuple[Log, Sessions]]:
        """The engine on a place; what was written there before is there again."""

    async def test_what_is_kept_comes_back_as_it_was_also_after_a_restart(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as (log, _):
            gateway = log.gateway
            first = await log.append(draft(b"one", at=77), "notes", 5)
            second = await log.append(draft(b"two", from_far(9), profile=Profile.MESSAGE), "far", 6)
        async with self.opened(tmp_path) as (log, _):
            assert log.gateway == gateway
            entries = await log.after(Wanted(ITEM), 0, 10, MUCH)
            assert [entry.position for entry in entries] == [first.position, second.position]
            assert entries[0].origin == OriginId(gateway, 1) == first.origin
            assert (entries[0].via, entries[0].draft.published_ms, entries[0].appended_ms) == ("notes", 77, 5)
            assert entries[0].draft.attribute("self") == "x"
            assert (entries[1].draft.body, entries[1].draft.profile) == (b"two", Profile.MESSAGE)
            third = await log.append(draft(b"three"), "notes", 7)
            assert third.origin == OriginId(gateway, 2)
            assert third.position > second.position
            assert await log.last_position() == third.position

    async def test_an_origin_is_kept_once(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as (log, _):
            assert await log.highest(ITEM, FAR) == -1
            assert (await log.append(draft(b"one", from_far(3), profile=Profile.MESSAGE), "far", 1)).is_news
            for number in (3, 2):
                repeated = await log.append(draft(b"else", from_far(number), profile=Profile.MESSAGE), "far", 1)
                assert not repeated.is_news
            assert (await log.append(draft(b"one", from_far(4), profile=Profile.MESSAGE), "far", 1)).is_news
            assert (await log.append(draft(b"one", from_far(3), item=OTHER), "far", 1)).is_news
            assert await log.highest(ITEM, FAR) == 4
            assert sorted(await log.known_pairs((b"", b""), 10)) == sorted([(bytes(ITEM), FAR), (bytes(OTHER), FAR)])

    async def test_our_own_publication_is_known_when_it_comes_back(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as (log, _):
            own = await log.append(draft(b"A"), "notes", 1)
            back = await log.append(draft(b"A", own.origin), "far", 2)
            assert (back.is_news, back.position) == (False, own.position)

    async def test_a_publisher_that_goes_back_is_heard(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as (log, _):
            own = await log.append(draft(b"A"), "notes", 1)
            brought = await log.append(draft(b"B", from_far(1)), "far", 2)
            again = await log.append(draft(b"A", from_far(2), known=[own.origin]), "far", 3)
            assert brought.is_news
            assert again.is_news
            assert await self.bodies(log) == [b"A", b"B", b"A"]

    async def test_the_same_states_of_two_gateways_are_kept_once(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as (log, _):
            for number, body in enumerate((b"A", b"B", b"A"), 1):
                await log.append(draft(body), "notes", number)
            for number, body in enumerate((b"A", b"B", b"A"), 1):
                assert not (await log.append(draft(body, from_far(number)), "far", 9)).is_news, number
            assert (await log.append(draft(b"C", from_far(4)), "far", 9)).is_news
            assert not (await log.append(draft(b"C", from_far(1, FARTHER)), "far", 9)).is_news
            assert await self.bodies(log) == [b"A", b"B", b"A", b"C"]

    async def test_what_enters_here_says_what_was_known_of_others(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as (log, _):
            await log.append(draft(b"A", from_far(4)), "far", 1)
            await log.append(draft(b"B"), "notes", 2)
            newest = await log.newest(Wanted(ITEM))
            assert newest is not None
            assert newest.draft.known == (from_far(4),)
            # What an own publication's gateway knew and what comes late by another way brings nobody back to it.
            later = draft(b"C", from_far(1, FARTHER), known=[from_far(6)])
            assert (await log.append(later, "far", 3)).is_news
            assert not (await log.append(draft(b"stale", from_far(5)), "far", 4)).is_news

    async def test_readers_choose_what_they_are_given(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as (log, _):
            own = await log.append(draft(b"own"), "notes", 10)
            far = await log.append(draft(b"far", from_far(1)), "far", 20)
            await log.append(draft(b"other", item=OTHER), "notes", 30)
            assert [e.draft.body for e in await log.after(Wanted(ITEM, entered_here=True), 0, 9, MUCH)] == [b"own"]
            assert [e.draft.body for e in await log.after(Wanted(ITEM, not_via="notes"), 0, 9, MUCH)] == [b"far"]
            assert [e.draft.body for e in await log.after(Wanted(ITEM), own.position, 9, MUCH)] == [b"far"]
            assert len(await log.after(Wanted(ITEM), 0, 1, MUCH)) == 1
            assert len(await log.after(Wanted(ITEM), 0, 9, 1)) == 1, "one, however large"
            assert [item for item, _ in await log.unread(0, entered_here=True, limit=9)] == [ITEM, OTHER]
            assert await log.unread(far.position, entered_here=False, limit=9) == [(OTHER, far.position + 1)]
            assert await log.position_of(ITEM, from_far(1)) == far.position
            assert await log.position_of(ITEM, from_far(2)) is None
            assert await log.position_before(ITEM, 20) == own.position
            assert (await log.get(far.position)) == (await log.newest(Wanted(ITEM)))
            assert await log.get(999) is None

    async def test_marks_are_written_with_what_was_taken_in(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as (log, _):
            assert await log.mark("source", "k") is None
            await log.append(draft(b"one"), "notes", 1, [Mark("source", "k", 7)])
            await log.append(draft(b"two"), "notes", 1, [Mark("source", "other", b"\x00\xff")])
        async with self.opened(tmp_path) as (log, _):
            assert await log.mark("source", "k") == 7
            assert await log.mark("source", "other") == b"\x00\xff"
            await log.put_marks([Mark("source", "k", 8)])
            assert await log.mark("source", "k") == 8
            soon = asyncio.ensure_future(log.put_marks_soon([Mark("source", "k", 9)]))
            await log.append(draft(b"three"), "notes", 1)
            await soon
            await asyncio.ensure_future(log.put_marks_soon([Mark("source", "other", 10)]))
        async with self.opened(tmp_path) as (log, _):
            assert await log.mark("source", "k") == 9
            assert await log.mark("source", "other") == 10

    async def test_retention_by_count_and_bytes_leaves_the_newest_and_what_is_not_taken(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as (log, _):
            last: Appended | None = None
            for number in range(10):
                last = await log.append(draft(b"%d" % number), "notes", 1)
            assert last is not None
            assert (last.count, last.bytes) == (10, 10)
            assert await log.trim_item(ITEM, 2, RetentionBounds(count=3)) == (2, 8, 8)
            assert await log.trim_item(ITEM, MUCH, RetentionBounds(count=3)) == (5, 3, 3)
            assert await self.bodies(log) == [b"7", b"8", b"9"]
            assert await log.trim_item(ITEM, MUCH, RetentionBounds(count=1, bytes=0)) == (2, 1, 1)
            # What went is still known.
            own = OriginId(log.gateway, 1)
            assert not (await log.append(draft(b"0", own), "far", 2)).is_news

    async def test_retention_by_age_and_by_all_bytes(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as (log, _):
            for number in range(4):
                await log.append(draft(b"%d" % number), "notes", number * 1000)
                await log.append(draft(b"%d" % number, item=OTHER), "notes", number * 1000)
            bounds = RetentionBounds(age=2)
            assert await log.trim_all(bounds, 4500, [(OTHER, 2)]) == 4
            assert await self.bodies(log) == [b"3"]
            assert len(await log.after(Wanted(OTHER), 0, 9, MUCH)) == 3
            assert await log.trim_all(RetentionBounds(total_bytes=2), 4500, []) == 2
            assert await log.trim_all(RetentionBounds(total_bytes=2), 4500, []) == 0
            assert await log.forget(OTHER) == 1
            assert await log.after(Wanted(OTHER), 0, 9, MUCH) == []

    async def test_sessions_and_what_they_want_outlive_a_restart(self, tmp_path: Path) -> None:
        selector = parse_selector("price > 4 and tag in ('a', 'it''s')")
        interest = Interest("a@a.example", ITEM, "left", 99.0, "json", selector)
        async with self.opened(tmp_path) as (_, sessions):
            await sessions.add_interest(KEY, interest, 4, 1.0)
            await sessions.add_interest(SessionKey("notes", "eva"), Interest("b@a.example", OTHER), 5, 1.0)
            await sessions.add_interest(SessionKey("far", "all"), Interest("*", None), None, 1.0)
            await sessions.put(KEY, SessionState.AWAY, 2.0)
        async with self.opened(tmp_path) as (_, sessions):
            assert await sessions.interests(KEY) == [interest]
            assert await sessions.of_item(ITEM, 50.0) == [(KEY, interest)]
            assert await sessions.of_item(ITEM, 99.0) == []
            assert await sessions.of_session(KEY, ITEM, 50.0) == [interest]
            assert await sessions.of_session(KEY, OTHER, 50.0) == []
            assert [key for key, _ in await sessions.of_everything()] == [SessionKey("far", "all")]
            assert await sessions.ended(99.0, 9) == [(KEY, interest)]
            assert await sessions.items_after(b"", 9, 50.0) == sorted([bytes(ITEM), bytes(OTHER)])
            listed = await sessions.listing(SessionKey("", ""), 9)
            assert [(one.key.who, one.state, one.interests) for one in listed] == [
                ("all", SessionState.LIVE, 1),
                ("ana", SessionState.AWAY, 1),
                ("eva", SessionState.LIVE, 1),
            ]
            assert await sessions.listing(KEY, 1) == listed[2:]
            assert await sessions.get(KEY) == listed[1]
            assert await sessions.get(SessionKey("notes", "nobody")) is None
            assert await sessions.count(KEY) == 1
            assert await sessions.has(KEY, "a@a.example")
            assert not await sessions.has(KEY, "b@a.example")
            assert await sessions.drop_interest(KEY, "nothing") is None
            assert await sessions.drop_interest(KEY, "a@a.example") == interest
            assert await sessions.cursor(KEY, ITEM) is None
            assert KEY not in [one.key for one in await sessions.listing(SessionKey("", ""), 9)]
            assert await sessions.drop(SessionKey("notes", "eva")) == [Interest("b@a.example", OTHER)]

    async def test_cursors_are_of_a_session_and_an_item(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as (log, sessions):
            for name, item in (("one", ITEM), ("other spelling", ITEM), ("two", OTHER)):
                await sessions.add_interest(KEY, Interest(name, item), 0, 1.0)
            await sessions.add_interest(KEY, Interest("one", ITEM), 40, 1.0)
            assert await sessions.cursor(KEY, ITEM) == 0, "a renewal begins nothing anew"
            entry = await log.append(draft(b"x"), "notes", 1)
            assert await sessions.unread(9, (SessionKey("", ""), b"")) == [(KEY, ITEM)]
            assert await sessions.unread(9, (KEY, bytes(ITEM))) == []
            await sessions.move(KEY, ITEM, entry.position)
            assert await sessions.unread(9, (SessionKey("", ""), b"")) == []
            await sessions.drop_interest(KEY, "one")
            assert await sessions.cursor(KEY, ITEM) == entry.position, "it is wanted by another name still"
            await sessions.drop_interest(KEY, "other spelling")
            assert await sessions.cursor(KEY, ITEM) is None

    async def test_a_base_stands_for_all_cursors_up_to_it(self, tmp_path: Path) -> None:
        key = SessionKey("far", "all")
        async with self.opened(tmp_path) as (_, sessions):
            await sessions.add_interest(key, Interest("*", None), None, 1.0)
            assert await sessions.base(key) == 0
            await sessions.move(key, ITEM, 3)
            await sessions.move(key, OTHER, 8)
            await sessions.move_base(key, 5)
        async with self.opened(tmp_path) as (_, sessions):
            assert await sessions.base(key) == 5
            assert await sessions.cursor(key, ITEM) is None
            assert await sessions.cursor(key, OTHER) == 8

    async def test_how_much_waits_and_where_a_bound_is(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as (log, _):
            at = [(await log.append(draft(b"x" * size), "notes", 1)).position for size in (10, 20, 30, 40)]
            await log.append(draft(b"other", item=OTHER), "far", 1)
            assert [await log.waiting(Wanted(ITEM), position) for position in (0, at[1], at[3])] == [4, 2, 0]
            assert await log.waiting(Wanted(ITEM, not_via="notes"), 0) == 0
            assert await log.position_back(ITEM, 4, MUCH) == 0
            assert await log.position_back(ITEM, 3, MUCH) == at[0]
            assert await log.position_back(ITEM, 4, 70) == at[1]
            assert await log.total_bytes() == 105

    async def test_the_newest_entries_by_count_and_bytes(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as (log, _):
            assert await log.latest(Wanted(ITEM), 9, MUCH) == []
            at = [(await log.append(draft(b"x" * size), "notes", 1)).position for size in (10, 20, 30, 40)]

            async def sizes(limit: int, max_bytes: int, upto: int | None = None) -> list[int]:
                return [len(entry.draft.body) for entry in await log.latest(Wanted(ITEM), limit, max_bytes, upto)]

            assert await sizes(9, MUCH) == [10, 20, 30, 40]
            assert await sizes(2, MUCH) == [30, 40]
            assert await sizes(9, 70) == [30, 40]
            assert await sizes(9, 1) == [40]
            assert await sizes(2, MUCH, at[1]) == [10, 20]
            assert await sizes(2, MUCH, at[0] - 1) == []

    async def test_names_are_found_by_a_part_and_by_digits_of_their_ids(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as (log, sessions):
            await log.append(draft(b"x"), "notes", 1)
            await sessions.add_interest(KEY, Interest("http://b.example/100%", OTHER), 0, 1.0)
            assert await log.names_like("EXAMPLE", 9) == ["a@a.example", "http://b.example/100%"]
            assert await log.names_like("100%", 9) == ["http://b.example/100%"]
            assert await log.names_like("1_0%", 9) == []
            assert await log.names_of(bytes(ITEM).hex()[100:120], 9) == ["a@a.example"]
            assert len(await log.names_like("example", 1)) == 1

    @pytest.mark.parametrize("name", ["", "x" * 2000, "ü\n'; DROP TABLE exchange_log"])
    async def test_names_are_only_names(self, tmp_path: Path, name: str) -> None:
        async with self.opened(tmp_path) as (_, sessions):
            key = SessionKey("notes", name)
            await sessions.add_interest(key, Interest(name, ITEM), 0, 1.0)
            assert [one.name for one in await sessions.interests(key)] == [name]

    async def bodies(self, log: Log) -> list[bytes]:
        return [entry.draft.body for entry in await log.after(Wanted(ITEM), 0, 100, MUCH)]
