"""Strangers get so many subscriptions and no more, whoever has one keeps it, and a restart forgets neither."""

from pathlib import Path

import aiohttp
from hypothesis import given
from hypothesis import strategies as st

from push_hub.bounds import SubscriptionBounds
from push_hub.model import Dialect
from push_hub.protocol.numbers import Mode
from push_hub.protocol.verification import Intent
from push_hub.schema import HUB_TABLES, SUBSCRIPTION_TABLES
from push_hub.server import ServerConfig
from push_hub.subscriptions import Subscriptions
from push_hub.verifier import IntentVerifierConfig
from serving.events import LimitReached
from serving.limits import Rate
from storage import Database
from tests.push_hub.conformance.test_conformance_requests import TOPIC, form, settled
from tests.push_hub.harness import Subscriber
from tests.push_hub.running import RunningHub, run_hub

PROXIED = ServerConfig(trusted_proxies=frozenset({"127.0.0.1"}))
"""Tests say where their requests come from as a proxy would."""
SYNC = ("hub.verify", "sync")
TABLES = [*HUB_TABLES, *SUBSCRIPTION_TABLES]


async def ask(http: aiohttp.ClientSession, hub: RunningHub, callback: str, client: str, *more: tuple[str, str]) -> int:
    headers = {"X-Forwarded-For": client}
    async with http.post(hub.url, data=form(callback, *more), headers=headers) as answer:
        if answer.status in (429, 503):
            assert "Retry-After" in answer.headers
            assert ":" in await answer.text(), "it says what to do"
        return answer.status


async def ask_all(
    http: aiohttp.ClientSession, hub: RunningHub, subscriber: Subscriber, client: str, n: int
) -> list[int]:
    return [await ask(http, hub, subscriber.url(f"/{client}/{i}"), client, SYNC) for i in range(n)]


async def test_an_address_and_its_network_have_their_share_and_others_theirs(
    tmp_path: Path, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    bounds = SubscriptionBounds(in_all=7, per_network=4, per_address=3)
    async with run_hub(tmp_path, PROXIED, bounds=bounds) as hub:
        assert await ask_all(http, hub, subscriber, "203.0.113.7", 5) == [204, 204, 204, 429, 429]
        assert await ask_all(http, hub, subscriber, "203.0.113.8", 3) == [204, 429, 429]
        assert await ask_all(http, hub, subscriber, "2001:db8::1", 2) == [204, 204]
        assert await ask_all(http, hub, subscriber, "198.51.100.1", 3) == [204, 503, 503]
        assert {one.name for one in hub.events if isinstance(one, LimitReached)} == {
            "subscriptions.per_address",
            "subscriptions.per_network",
            "subscriptions.in_all",
        }
        assert hub.subscriptions.count(TOPIC) == 7


async def test_what_is_there_is_renewed_and_ended_when_nothing_new_is_taken(
    tmp_path: Path, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    bounds = SubscriptionBounds(in_all=1, per_network=1, per_address=1, pending_per_network=0)
    config = ServerConfig(
        trusted_proxies=PROXIED.trusted_proxies, new_subscriptions=Rate(0.001, 1), per_callback_host=Rate(0.001, 1)
    )
    async with run_hub(tmp_path, config, IntentVerifierConfig(), bounds=SubscriptionBounds()) as hub:
        assert await ask(http, hub, subscriber.url("/mine"), "203.0.113.7", SYNC) == 204
    full = IntentVerifierConfig(max_pending=0, max_pending_per_prefix=0)
    async with run_hub(tmp_path, config, full, bounds=bounds) as hub:
        assert await ask(http, hub, subscriber.url("/other"), "203.0.113.7", SYNC) == 429
        assert await ask(http, hub, subscriber.url("/other"), "198.51.100.7") in (429, 503)
        for _ in range(3):
            assert await ask(http, hub, subscriber.url("/mine"), "203.0.113.7") == 202
            await settled(hub)
            assert await ask(http, hub, subscriber.url("/mine"), "192.0.2.1", SYNC) == 204
        leave = form(subscriber.url("/mine"), SYNC, mode="unsubscribe")
        async with http.post(hub.url, data=leave, headers={"X-Forwarded-For": "203.0.113.7"}) as answer:
            assert answer.status == 204
        assert hub.subscriptions.count(TOPIC) == 0


async def test_requests_that_wait_are_bounded_for_each_network(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    bounds = SubscriptionBounds(pending_per_network=2)
    async with run_hub(tmp_path, PROXIED, IntentVerifierConfig(concurrency=0), bounds=bounds) as hub:
        found = [await ask(http, hub, f"http://s{n}.example/", f"203.0.113.{n}") for n in range(4)]
        assert found == [202, 202, 429, 429]
        assert await ask(http, hub, "http://s0.example/", "203.0.113.9") == 202, "the same again replaces what waits"
        assert await ask(http, hub, "http://s9.example/", "198.51.100.1") == 202
        assert hub.events.count(LimitReached("subscriptions.pending_per_network")) == 2
    async with run_hub(tmp_path, PROXIED, IntentVerifierConfig(concurrency=0), bounds=bounds) as hub:
        assert await ask(http, hub, "http://s5.example/", "203.0.113.1") == 429, "a restart forgets nothing"


async def test_new_ones_have_a_rate_for_each_network(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    config = ServerConfig(trusted_proxies=PROXIED.trusted_proxies, new_subscriptions=Rate(0.001, 2))
    async with run_hub(tmp_path, config, IntentVerifierConfig(concurrency=0)) as hub:
        found = [await ask(http, hub, f"http://s{n}.example/", f"203.0.113.{n}") for n in range(3)]
        assert found == [202, 202, 429]
        assert await ask(http, hub, "http://s9.example/", "198.51.100.1") == 202
        assert hub.events.count(LimitReached("new_subscriptions")) == 1


async def test_who_was_let_in_together_is_not_more_than_there_is_room_for(
    tmp_path: Path, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    """Both were asked for while there was room; only one is there in the end, and the other is told."""
    async with run_hub(tmp_path, PROXIED, IntentVerifierConfig(concurrency=0)) as hub:
        for n in range(2):
            assert await ask(http, hub, subscriber.url(f"/{n}"), "203.0.113.1") == 202
    async with run_hub(tmp_path, PROXIED, bounds=SubscriptionBounds(per_network=1)) as hub:
        await settled(hub)
        assert hub.subscriptions.count(TOPIC) == 1
        checks = [subscriber.checks.get_nowait() for _ in range(subscriber.checks.qsize())]
        denials = [check for check in checks if "hub.mode=denied" in check.path_qs]
        assert len(denials) == 1
        assert "subscriptions" in denials[0].path_qs


async def test_a_store_of_an_older_version_is_counted_as_nobody_s(tmp_path: Path) -> None:
    older = [step for step in TABLES if step.owner != "push_hub.clients"]
    with Database.open(tmp_path / "hub.sqlite", older) as database:
        for n in range(3):
            database.write(
                lambda tx, n=n: tx.execute(
                    "INSERT INTO subscriptions (topic, callback, signature, dialect, lease_until, created_at) "
                    "VALUES ('t', ?, 'sha256', 'websub', 1e12, 0)",
                    (f"http://c/{n}",),
                )
            ).result()
    with Database.open(tmp_path / "hub.sqlite", TABLES) as database:
        assert counts(database) == {("", ""): (3, 0)}


def counts(database: Database) -> dict[tuple[str, str], tuple[int, int]]:
    return {(a, b): (c, d) for a, b, c, d in database.read("SELECT network, address, live, pending FROM client_counts")}


@given(st.data())
async def test_the_sums_are_those_of_the_rows(tmp_path_factory: object, data: st.DataObject) -> None:
    """Whatever is asked, agreed to, refused, renewed by others, ended or run out."""
    now = 0.0
    with Database.open(tmp_path_factory.mktemp("store") / "a.db", TABLES) as database:  # type: ignore[attr-defined]
        store = Subscriptions(database)
        for number in range(data.draw(st.integers(1, 12))):
            now += 1
            client = data.draw(st.sampled_from([("", ""), ("n1", "a1"), ("n1", "a2"), ("n2", "a3")]))
            mode = data.draw(st.sampled_from([Mode.SUBSCRIBE, Mode.SUBSCRIBE, Mode.UNSUBSCRIBE]))
            callback = data.draw(st.sampled_from(["http://c/1", "http://c/2"]))
            intent = Intent(mode, "t", callback, Dialect.WEBSUB, now, str(number), network=client[0], address=client[1])
            row: int | None = await store.enqueue(intent, now)
            match data.draw(st.sampled_from(["confirm", "fail", "leave", "at once", "sweep"])):
                case "confirm":
                    await store.confirm(row, intent, now, data.draw(st.sampled_from([1, 100])), now)
                case "fail":
                    await store.fail(row, intent, "no", now)
                case "at once":
                    await store.confirm(None, intent, now, 100, now)
                case "sweep":
                    await store.sweep(now, 10)
                case _:
                    pass
        expected: dict[tuple[str, str], list[int]] = {}
        for column, table in enumerate(("subscriptions", "verifications")):
            for network, address in database.read(f"SELECT network, address FROM {table}"):  # noqa: S608
                for key in {("", ""), (network, ""), (network, address)}:
                    expected.setdefault(key, [0, 0])[column] += 1
        assert {key: (live, waiting) for key, (live, waiting) in counts(database).items() if live or waiting} == {
            key: tuple(value) for key, value in expected.items()
        }
