"""Sessions that select: each is given what it selected, whatever else was published; nobody reads the rest for it."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exchange.exchange import Exchange
from exchange.model import FROM_NOW, Draft, Interest, LogEntry, Profile, SessionKey, Start
from exchange.ports import Wanted
from exchange.selection import parse_selector
from exchange.sqlite import EXCHANGE_TABLES, SqliteLog, SqliteSessions
from storage import Database
from tests.exchange.engine_suite import ITEM
from tests.exchange.test_exchange import QUICK, Bench, Notes, bench
from tests.waiting import until

ALL = Start(everything=True)


def reading(price: int, tag: str = "a") -> Draft:
    body = json.dumps({"price": price, "tag": tag}).encode()
    return Draft(ITEM, "a@a.example", Profile.EVENT, "application/json", body)


async def say(here: Bench, *prices: int) -> None:
    for price in prices:
        await here.exchange.publish(reading(price), "sensor")


def prices(notes: Notes, who: str) -> list[int]:
    return [json.loads(body)["price"] for body in notes.taken.get(who, [])]


def want(text: str) -> Interest:
    return Interest("x", ITEM, selector=parse_selector(text))


@pytest.mark.parametrize("durable", [True, False])
async def test_each_is_given_what_it_selected(tmp_path: Path, durable: bool) -> None:
    notes = Notes()
    async with bench(tmp_path, notes) as here:
        await say(here, 1, 5)
        for who, text in (("low", "price < 3"), ("high", "price >= 3"), ("all", ""), ("none", "absent exists")):
            await here.exchange.subscribe(SessionKey("notes", who), want(text), ALL, durable=durable)
        await say(here, 2, 7, 9, 0)
        await until(lambda: prices(notes, "all") == [1, 5, 2, 7, 9, 0])
        await until(lambda: prices(notes, "low") == [1, 2, 0])
        await until(lambda: prices(notes, "high") == [5, 7, 9])
        assert "none" not in notes.taken


async def test_who_selects_something_else_from_now_on_is_given_that(tmp_path: Path) -> None:
    notes, key = Notes(), SessionKey("notes", "ana")
    async with bench(tmp_path, notes) as here:
        await here.exchange.subscribe(key, want("price < 3"), FROM_NOW)
        await say(here, 1, 5)
        await until(lambda: prices(notes, "ana") == [1])
        await here.exchange.subscribe(key, want("price > 3"), FROM_NOW)
        await say(here, 2, 6)
        await until(lambda: prices(notes, "ana")[-1:] == [6])
        assert 2 not in prices(notes, "ana")


async def test_selectors_outlive_the_process_and_absence(tmp_path: Path) -> None:
    key = SessionKey("notes", "ana")
    async with bench(tmp_path, Notes()) as here:
        await here.exchange.subscribe(key, want("price < 3"), FROM_NOW)
        await here.exchange.leave(key)
        await say(here, 1, 5, 2)
    notes = Notes()
    async with bench(tmp_path, notes) as here:
        await say(here, 6, 0)
        await here.exchange.come(key)
        await until(lambda: prices(notes, "ana") == [1, 2, 0])


class CountingLog(SqliteLog):
    read = 0

    async def after(self, wanted: Wanted, position: int, limit: int, max_bytes: int) -> list[LogEntry]:
        found = await super().after(wanted, position, limit, max_bytes)
        self.read += len(found)
        return found


async def test_what_nobody_selected_is_read_for_nobody(tmp_path: Path) -> None:
    notes = Notes()
    with Database.open(tmp_path / "exchange.sqlite", EXCHANGE_TABLES) as database:
        log = CountingLog(database)
        exchange = Exchange(log, SqliteSessions(database), lambda: 1000.0, QUICK)
        await exchange.start()
        exchange.add(notes)
        for number in range(50):
            key = SessionKey("notes", str(number))
            await exchange.subscribe(key, want(f"price = {number}"), FROM_NOW, durable=number % 2 == 0)
        for price in [*range(100, 150), 7, 8]:
            await exchange.publish(reading(price), "sensor")
        await until(lambda: (prices(notes, "7"), prices(notes, "8")) == ([7], [8]))
        await exchange.stop()
        assert log.read <= 4, "one for each, and what was published meanwhile"
        assert set(notes.taken) == {"7", "8"}


@settings(max_examples=30, deadline=None)
@given(
    selectors=st.lists(
        st.sampled_from(["", "price < 3", "price = 1", "price >= 2 and tag = 'b'"]), min_size=1, max_size=5
    ),
    said=st.lists(st.tuples(st.integers(0, 4), st.sampled_from("ab")), max_size=12),
    restarts=st.sets(st.integers(0, 11)),
)
async def test_whatever_is_published_and_whenever_it_is_started_again(
    tmp_path_factory: pytest.TempPathFactory,
    selectors: Sequence[str],
    said: Sequence[tuple[int, str]],
    restarts: set[int],
) -> None:
    place = tmp_path_factory.mktemp("selecting")
    notes = Notes()
    keys = [SessionKey("notes", str(number)) for number in range(len(selectors))]
    async with bench(place, notes) as here:
        for key, text in zip(keys, selectors, strict=True):
            await here.exchange.subscribe(key, want(text), FROM_NOW)
    expected = [
        [p for p, t in said if parse_selector(text).matches({"price": (str(p),), "tag": (t,)})] for text in selectors
    ]
    stops = sorted({0, *restarts, len(said)})
    for begin, end in zip(stops, [*stops[1:], len(said)], strict=True):
        async with bench(place, notes) as here:
            for price, tag in said[begin:end]:
                await here.exchange.publish(reading(price, tag), "sensor")
            if end == len(said):
                await until(lambda: [prices(notes, key.who) for key in keys] == expected)
