"""Sessions on a log: their own pace, their own cursors, and who is disturbed by whom."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from exchange.exchange import Exchange, ExchangeConfig, TooManyInterestsError
from exchange.model import (
    CURRENT,
    FROM_NOW,
    Draft,
    EntryRefused,
    ExchangeEvent,
    Interest,
    ItemFullError,
    LogEntry,
    OriginId,
    Profile,
    RetentionBounds,
    SessionFellBehind,
    SessionKey,
    SessionState,
    Start,
)
from exchange.ports import PassOverError
from exchange.sqlite import EXCHANGE_TABLES, SqliteLog, SqliteSessions
from identifiers import DEFAULT_NAMING, ItemId
from storage import Database
from tests.exchange.engine_suite import FAR, ITEM, OTHER, draft
from tests.waiting import until

ANA = SessionKey("notes", "ana")
QUICK = ExchangeConfig(first_wait=0.001, longest_wait=0.01, sweep_every=0.01, trim_every=0.01, max_interests=2)


class Notes:
    """A protocol that writes down what its sessions are handed."""

    def __init__(self, name: str = "notes", *, hears_own: bool = True) -> None:
        self.name = name
        self.hears_own = hears_own
        self.taken: dict[str, list[bytes]] = {}
        self.trouble: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def deliver(self, key: SessionKey, entry: LogEntry, interests: Sequence[Interest]) -> None:
        await self.gate.wait()
        if self.trouble is not None:
            raise self.trouble
        self.taken.setdefault(key.who, []).append(entry.draft.body)


class Bench:
    def __init__(self, exchange: Exchange, events: list[ExchangeEvent]) -> None:
        self.exchange = exchange
        self.events = events
        self.now = 1000.0

    async def say(self, body: bytes, item: ItemId = ITEM, via: str = "notes") -> int:
        return (await self.exchange.publish(draft(body, item=item), via)).position


@asynccontextmanager
async def bench(folder: Path, *readers: Notes, config: ExchangeConfig = QUICK) -> AsyncGenerator[Bench, None]:
    with Database.open(folder / "exchange.sqlite", EXCHANGE_TABLES) as database:
        events: list[ExchangeEvent] = []
        exchange = Exchange(
            SqliteLog(database), SqliteSessions(database), lambda: found.now, config, observer=events.append
        )
        found = Bench(exchange, events)
        await exchange.start()
        for reader in readers:
            exchange.add(reader)
        try:
            yield found
        finally:
            await exchange.stop()


async def test_each_session_has_what_it_asked_for_from_where_it_asked(tmp_path: Path) -> None:
    notes = Notes()
    async with bench(tmp_path, notes) as here:
        positions = [await here.say(b"%d" % number) for number in range(3)]
        await here.exchange.publish(draft(b"late", at=5_000_000), "notes")
        starts = {
            "now": FROM_NOW,
            "current": Start(current=True),
            "after": Start(after=positions[1]),
            "since": Start(since_ms=2_000_000),
            "all": Start(everything=True),
            "origin": Start(after_origin=OriginId(here.exchange.gateway, 2)),
            "unknown origin": Start(after_origin=OriginId(FAR, 2)),
        }
        for who, start in starts.items():
            await here.exchange.subscribe(SessionKey("notes", who), Interest("x", ITEM), start, durable=who != "all")
        await here.say(b"next")
        await until(lambda: all(notes.taken.get(who, [])[-1:] == [b"next"] for who in starts))
        assert {who: taken[:-1] for who, taken in notes.taken.items()} == {
            "now": [],
            "current": [b"late"],
            "after": [b"2", b"late"],
            "since": [b"late"],
            "all": [b"0", b"1", b"2", b"late"],
            "origin": [b"2", b"late"],
            "unknown origin": [b"late"],
        }


async def test_a_durable_session_goes_on_where_it_was_and_a_fleeting_one_is_gone(tmp_path: Path) -> None:
    notes = Notes()
    async with bench(tmp_path, notes) as here:
        await here.exchange.subscribe(ANA, Interest("x", ITEM))
        await here.exchange.subscribe(SessionKey("notes", "fleeting"), Interest("x", ITEM), durable=False)
        await here.say(b"one")
        await until(lambda: len(notes.taken) == 2)
        assert [(one.key.who, one.durable) for one in await here.exchange.listing(SessionKey("", ""), 9)] == [
            ("ana", True),
            ("fleeting", False),
        ]
        notes.trouble = OSError("no paper")
        await here.say(b"two")
        await until(lambda: any(isinstance(event, EntryRefused) and event.again for event in here.events))
    again = Notes()
    async with bench(tmp_path, again) as here:
        await here.say(b"three")
        await until(lambda: again.taken.get("ana") == [b"two", b"three"])
        assert set(again.taken) == {"ana"}


async def test_who_is_away_misses_nothing(tmp_path: Path) -> None:
    notes = Notes()
    async with bench(tmp_path, notes) as here:
        await here.exchange.subscribe(ANA, Interest("x", ITEM))
        await here.exchange.leave(ANA)
        for body in (b"one", b"two"):
            await here.say(body)
        [listed] = await here.exchange.listing(SessionKey("", ""), 9)
        assert listed.state is SessionState.AWAY
    async with bench(tmp_path, notes) as here:
        await here.say(b"three")
        assert not notes.taken
        await here.exchange.come(ANA)
        await until(lambda: notes.taken.get("ana") == [b"one", b"two", b"three"])
        assert await here.exchange.end(ANA)
        assert not await here.exchange.end(ANA)
        assert not await here.exchange.is_wanted(ITEM)


@pytest.mark.parametrize("trouble", ["slow", "refuses", "fails"])
async def test_a_reader_in_trouble_holds_up_itself_only(tmp_path: Path, trouble: str) -> None:
    """Fifty items of one reader, none of which is taken, beside a healthy one."""
    bad, good = Notes("bad"), Notes("good")
    if trouble == "slow":
        bad.gate.clear()
    else:
        bad.trouble = OSError("broken") if trouble == "fails" else PassOverError("never")
    items = [DEFAULT_NAMING.of_user(f"u{number}@a.example") for number in range(100)]
    config = ExchangeConfig(first_wait=0.001, longest_wait=0.01, max_interests=1000)
    async with bench(tmp_path, bad, good, config=config) as here:
        for item in items:
            for name in ("bad", "good"):
                await here.exchange.subscribe(SessionKey(name, "x"), Interest(str(item), item))
        for number in range(3):
            for item in items:
                await here.say(b"%d" % number, item, "elsewhere")
        await until(lambda: len(good.taken.get("x", [])) == 3 * len(items))
        assert not bad.taken
        if trouble != "refuses":
            bad.gate.set()
            bad.trouble = None
            await until(lambda: len(bad.taken.get("x", [])) == 3 * len(items))


async def test_the_entries_of_an_item_come_in_order_whatever_fails(tmp_path: Path) -> None:
    notes = Notes()
    async with bench(tmp_path, notes) as here:
        await here.exchange.subscribe(ANA, Interest("x", ITEM))
        for number in range(40):
            notes.trouble = OSError("now and then") if number % 3 else None
            await here.say(b"%d" % number)
        notes.trouble = None
        await until(lambda: len(notes.taken.get("ana", [])) == 40)
        assert notes.taken["ana"] == [b"%d" % number for number in range(40)]


async def test_who_wants_everything_is_given_what_entered_here_and_only_that(tmp_path: Path) -> None:
    far = Notes("far", hears_own=False)
    key = SessionKey("far", "all")
    async with bench(tmp_path, far) as here:
        await here.exchange.subscribe(key, Interest("*", None), Start(everything=True))
        await here.say(b"one")
        await here.exchange.publish(draft(b"echoed", OriginId(FAR, 1)), "far")
        await here.say(b"two", OTHER)
        await until(lambda: sorted(far.taken.get("all", [])) == [b"one", b"two"])
        far.trouble = OSError("the line is down")
        await here.say(b"three")
        await here.say(b"four", OTHER)
        await until(lambda: sum(isinstance(event, EntryRefused) for event in here.events) > 3)
    again = Notes("far", hears_own=False)
    async with bench(tmp_path, again) as here:
        await here.say(b"five")
        await until(lambda: sorted(again.taken.get("all", [])) == [b"five", b"four", b"three"])
        assert again.taken["all"].index(b"three") < again.taken["all"].index(b"five")


async def test_leases_end_and_nobody_wants_the_item_any_more(tmp_path: Path) -> None:
    changes: list[ItemId] = []
    async with bench(tmp_path, Notes()) as here:
        here.exchange.watch(changes.append)
        await here.exchange.subscribe(ANA, Interest("x", ITEM, until=1010.0))
        assert await here.exchange.is_wanted(ITEM)
        here.now = 1011.0
        await until(lambda: changes.count(ITEM) == 2)
        assert not await here.exchange.is_wanted(ITEM)
        assert await here.exchange.wanted_items(b"", 9) == []


async def test_a_session_wants_no_more_than_it_may(tmp_path: Path) -> None:
    async with bench(tmp_path, Notes()) as here:
        for name in ("one", "two", "one"):
            await here.exchange.subscribe(ANA, Interest(name, ITEM))
        with pytest.raises(TooManyInterestsError, match="2 subscriptions, which is the limit"):
            await here.exchange.subscribe(ANA, Interest("three", OTHER))
        await here.exchange.subscribe(ANA, Interest("three", OTHER), limited=False)


async def test_what_nobody_wants_any_more_is_passed_over(tmp_path: Path) -> None:
    notes = Notes()
    notes.gate.clear()
    async with bench(tmp_path, notes) as here:
        await here.exchange.subscribe(ANA, Interest("x", ITEM))
        await here.exchange.publish(
            Draft(ITEM, "x", Profile.EVENT, "text/plain", b"soon", deadline_ms=1_000_500), "far"
        )
        await here.exchange.publish(draft(b"later"), "far")
        here.now = 1001.0
        await here.exchange.leave(ANA)
        notes.gate.set()
        await here.exchange.come(ANA)
        await until(lambda: notes.taken.get("ana") == [b"later"])


async def test_what_somebody_lacks_is_kept_and_then_no_more_is_taken(tmp_path: Path) -> None:
    bounds = RetentionBounds(count=2, held_count=5)
    config = ExchangeConfig(retention=bounds, first_wait=0.001, longest_wait=0.002, trim_every=0.001)
    notes = Notes()
    notes.trouble = OSError("no paper")
    async with bench(tmp_path, notes, config=config) as here:
        await here.exchange.subscribe(ANA, Interest("x", ITEM))
        with pytest.raises(ItemFullError, match="try again later"):
            for number in range(9):
                await here.say(b"%d" % number)
        await here.say(b"another item", OTHER)
        notes.trouble = None
        await until(lambda: len(notes.taken.get("ana", [])) == 5)
        await until(lambda: here.exchange.counters.trimmed == 3)
        await here.say(b"there is room again")


async def test_a_session_that_is_too_far_behind_misses_the_oldest_and_no_publisher_waits(tmp_path: Path) -> None:
    bounds = RetentionBounds(count=2, behind_count=10, held_count=1000)
    config = ExchangeConfig(retention=bounds, first_wait=0.001, longest_wait=0.002, trim_every=0.001)
    notes, busy = Notes(), Notes("busy")
    notes.trouble = OSError("no paper")
    async with bench(tmp_path, notes, busy, config=config) as here:
        await here.exchange.subscribe(ANA, Interest("x", ITEM))
        await here.exchange.subscribe(SessionKey("busy", "bo"), Interest("x", ITEM))
        said = [b"%d" % number for number in range(60)]
        for body in said:
            await here.say(body)
        await until(lambda: busy.taken.get("bo") == said)
        await until(lambda: here.exchange.counters.trimmed >= 48)
        assert here.exchange.behind() == {ANA: 1}
        (standing,) = await here.exchange.standing(ANA, 10)
        assert standing.waiting <= 10
        notes.trouble = None
        await until(lambda: notes.taken.get("ana", [])[-1:] == [said[-1]])
        assert notes.taken["ana"] == said[-len(notes.taken["ana"]) :]
        behind = [event for event in here.events if isinstance(event, SessionFellBehind)]
        assert {(event.key, event.item) for event in behind} == {(ANA, ITEM)}
        assert len(behind) == here.exchange.counters.fell_behind


async def test_all_of_a_session_is_shown_and_it_goes_on_from_where_it_is_told(tmp_path: Path) -> None:
    notes = Notes()
    async with bench(tmp_path, notes) as here:
        await here.exchange.subscribe(ANA, Interest("x", ITEM), FROM_NOW)
        first = await here.say(b"one")
        await here.say(b"two")
        await until(lambda: notes.taken.get("ana") == [b"one", b"two"])
        await until(lambda: not here.exchange.behind())
        (standing,) = await here.exchange.standing(ANA, 10)
        assert (standing.interest.name, standing.cursor, standing.waiting) == ("x", first + 1, 0)
        assert await here.exchange.begin_again(ANA, "x", Start(after=first))
        await until(lambda: notes.taken.get("ana") == [b"one", b"two", b"two"])
        assert await here.exchange.begin_again(ANA, "x", Start(everything=True))
        await until(lambda: notes.taken.get("ana") == [b"one", b"two", b"two", b"one", b"two"])
        assert not await here.exchange.begin_again(ANA, "y", CURRENT)


async def test_an_echo_costs_no_commit_and_most_questions_no_look(tmp_path: Path) -> None:
    async with bench(tmp_path, Notes()) as here:
        exchange = here.exchange
        await until(lambda: exchange.router.wanted.may_have(b"\0") is False)
        await until(lambda: exchange.router.arrived.may_have(b"\0") is False)
        own = await exchange.publish(draft(b"A"), "notes")
        log = exchange.log
        assert isinstance(log, SqliteLog)
        log.append = None  # type: ignore[method-assign, assignment]  # nothing is written any more
        echo = await exchange.publish(draft(b"A", own.origin), "far")
        assert (echo.is_news, echo.position) == (False, own.position)
        assert exchange.counters.repeated == 1
        asked, spared = exchange.router.wanted.asked, exchange.router.wanted.spared
        assert not await exchange.is_wanted(OTHER)
        assert (exchange.router.wanted.asked, exchange.router.wanted.spared) == (asked + 1, spared + 1)


async def test_two_readers_cannot_share_a_name(tmp_path: Path) -> None:
    async with bench(tmp_path, Notes()) as here:
        with pytest.raises(ValueError, match="already"):
            here.exchange.add(Notes())
