"""Delivery over real sockets and a real file."""

import hashlib
import hmac
import time
from pathlib import Path

import pytest

from push_hub.delivery import ContentRefusedError, Delivery, DeliveryConfig, OverloadedError
from push_hub.delivery.schedule import RetrySchedule
from push_hub.model import Content, Dialect, Subscription
from tests.push_hub.delivery_support import (
    OK,
    TOPIC,
    CallbackServer,
    TableSubscribers,
    loopback_client,
    open_database,
    quick_config,
    status,
    subscribe,
    until,
)

ATOM = Content("application/atom+xml; charset=utf-8", b"<feed>all</feed>", b"<feed>new</feed>")

LINK = '<http://hub.example/>; rel="hub", <http://publisher.example/self>; rel="self"'


async def finished(delivery: Delivery) -> None:
    await until(lambda: delivery.backlog == 0 and delivery._saver.is_idle)


async def test_every_subscriber_gets_the_exact_body_type_links_and_its_own_signature(tmp_path: Path) -> None:
    client = loopback_client()
    with open_database(tmp_path) as database:
        async with CallbackServer() as server:
            subscribe(database, [server.url(f"/{n}?a&a=2") for n in range(5)], secret=b"secret")
            subscribe(database, [server.url("/plain")])
            subscribe(database, [server.url("/old")], dialect=Dialect.PUSH_03)
            subscribe(database, [server.url("/over")], lease_until=1.0)
            delivery = Delivery(database, TableSubscribers(database), client, quick_config(), time.time)
            await delivery.start()
            publication = await delivery.accept(TOPIC, "http://publisher.example/self", ATOM)
            await server.received(7)
            await finished(delivery)
            await delivery.stop()
            assert len(server.requests) == 7
            assert {path for path, _, _ in server.requests} == {*(f"/{n}?a&a=2" for n in range(5)), "/plain", "/old"}
            for path, headers, body in server.requests:
                assert headers["content-type"] == "application/atom+xml; charset=utf-8"
                assert (
                    headers["link"] == '<http://hub.example/>; rel="hub", <http://publisher.example/self>; rel="self"'
                )
                assert body == (ATOM.changes if path == "/old" else ATOM.body)
                expected = "sha256=" + hmac.new(b"secret", body, hashlib.sha256).hexdigest()
                assert headers.get("x-hub-signature") == (expected if "?" in path else None)
            assert [entry.status for entry in delivery.history(1)] == [204]
            assert delivery.latest(TOPIC) == [publication]
            assert delivery.since(TOPIC, 0) == [publication]
            assert delivery.since(TOPIC, publication.id) == []
        await client.close()


async def test_a_failure_is_retried_and_later_publications_wait_behind_it(tmp_path: Path) -> None:
    failures = 2

    def answer(path: str, _headers: dict[str, str], _body: bytes) -> bytes:
        nonlocal failures
        if path == "/bad" and failures:
            failures -= 1
            return status(503)
        return OK

    client = loopback_client()
    with open_database(tmp_path) as database:
        async with CallbackServer(answer) as server:
            subscribe(database, [server.url("/bad"), server.url("/good")])
            delivery = Delivery(database, TableSubscribers(database), client, quick_config(), time.time)
            await delivery.start()
            for n in range(3):
                await delivery.accept(TOPIC, TOPIC, Content("text/plain", b"%d" % n))
            await server.received(2 + 3 + 3)
            await until(lambda: not delivery._queue.pending)
            await delivery.stop()
            assert [body for path, _, body in server.requests if path == "/good"] == [b"0", b"1", b"2"]
            assert [body for path, _, body in server.requests if path == "/bad"] == [b"0", b"0", b"0", b"1", b"2"]
            assert database.read("SELECT count(*) FROM retries") == [(0,)]
            assert [entry.reason for entry in delivery.history(1)][:2] == ["the callback answered 503"] * 2
        await client.close()


async def test_giving_up_makes_a_dead_letter_keeps_the_subscription_and_can_be_replayed(tmp_path: Path) -> None:
    broken = True
    client = loopback_client()
    with open_database(tmp_path) as database:
        async with CallbackServer(lambda *_: status(500) if broken else OK) as server:
            subscribe(database, [server.url("/x")])
            delivery = Delivery(database, TableSubscribers(database), client, quick_config(), time.time)
            await delivery.start()
            await delivery.accept(TOPIC, TOPIC, Content("text/plain", b"one"))
            await until(lambda: bool(delivery.dead_letters()))
            (letter,) = delivery.dead_letters()
            assert (letter.attempts, letter.reason, letter.topic) == (4, "the callback answered 500", TOPIC)
            assert len(server.requests) == 4
            assert database.read("SELECT count(*) FROM subscriptions") == [(1,)]
            broken = False
            await delivery.accept(TOPIC, TOPIC, Content("text/plain", b"two"))
            await server.received(5)
            assert await delivery.replay(letter.id)
            await server.received(6)
            assert [body for _, _, body in server.requests[4:]] == [b"two", b"one"]
            assert delivery.dead_letters() == []
            assert not await delivery.replay(letter.id)
            await delivery.stop()
        await client.close()


async def test_410_ends_the_subscription_and_nothing_is_owed(tmp_path: Path) -> None:
    gone: list[Subscription] = []
    client = loopback_client()
    with open_database(tmp_path) as database:
        async with CallbackServer(lambda *_: status(410)) as server:
            subscribe(database, [server.url("/x")])
            delivery = Delivery(
                database, TableSubscribers(database), client, quick_config(), time.time, gone=gone.append
            )
            await delivery.start()
            await delivery.accept(TOPIC, TOPIC, ATOM)
            await until(lambda: bool(gone))
            await finished(delivery)
            await delivery.stop()
            assert [subscription.callback for subscription in gone] == [server.url("/x")]
            assert database.read("SELECT count(*) FROM retries") == [(0,)]
        await client.close()


async def test_redirects_are_failures_and_are_not_followed(tmp_path: Path) -> None:
    client = loopback_client()
    with open_database(tmp_path) as database:
        async with CallbackServer(lambda *_: status(302, "Location: /elsewhere")) as server:
            subscribe(database, [server.url("/x")])
            delivery = Delivery(database, TableSubscribers(database), client, quick_config(), time.time)
            await delivery.start()
            await delivery.accept(TOPIC, TOPIC, ATOM)
            await until(lambda: bool(delivery.dead_letters()))
            await delivery.stop()
            assert {path for path, _, _ in server.requests} == {"/x"}
        await client.close()


async def test_callbacks_that_never_answer_do_not_hold_back_the_others(tmp_path: Path) -> None:
    client = loopback_client()
    with open_database(tmp_path) as database:
        async with CallbackServer() as fast, CallbackServer(lambda *_: None) as silent:
            subscribe(database, [silent.url(f"/{n}") for n in range(40)])
            subscribe(database, [fast.url(f"/{n}") for n in range(60)])
            config = quick_config(in_flight=8, page=16, chunk=128, per_host=4, slow_after=0.02)
            delivery = Delivery(database, TableSubscribers(database), client, config, time.time)
            await delivery.start()
            await delivery.accept(TOPIC, TOPIC, ATOM)
            await fast.received(60)
            await finished(delivery)
            assert len(silent.requests) <= 4  # its host's limit
            assert database.read("SELECT count(*) FROM retries") == [(40,)]
            assert delivery.owed(1)[0].reason == "no answer yet"
            await delivery.stop()
        await client.close()


async def test_a_restart_takes_up_where_the_cursor_is(tmp_path: Path) -> None:
    with open_database(tmp_path) as database:
        async with CallbackServer() as server:
            subscribe(database, [server.url(f"/{n}") for n in range(10)])
            client = loopback_client()
            delivery = Delivery(database, TableSubscribers(database), client, quick_config(), time.time)
            await delivery.accept(TOPIC, TOPIC, ATOM)  # not started: it only goes to disk
            database.write(lambda tx: tx.execute("UPDATE fanouts SET position = 7")).result()
            await delivery.start()
            await server.received(3)
            await finished(delivery)
            await delivery.stop()
            await client.close()
            assert sorted(path for path, _, _ in server.requests) == ["/7", "/8", "/9"]
            assert database.read("SELECT count(*) FROM fanouts") == [(0,)]


async def test_too_large_a_backlog_is_refused_with_a_time_to_come_back(tmp_path: Path) -> None:
    client = loopback_client()
    with open_database(tmp_path) as database:
        config = DeliveryConfig("http://hub.example/", max_backlog=0, overload_retry_after=7.0)
        delivery = Delivery(database, TableSubscribers(database), client, config, time.time)
        with pytest.raises(OverloadedError) as refused:
            await delivery.accept(TOPIC, TOPIC, ATOM)
        assert refused.value.retry_after == 7.0
        assert database.read("SELECT count(*) FROM publications") == [(0,)]
    await client.close()


@pytest.mark.parametrize(
    ("self_url", "content_type"), [("http://x/>", "text/plain"), (TOPIC, "text/plain\r\nX-Evil: 1"), (TOPIC, "café☃")]
)
async def test_what_would_break_a_header_is_refused(tmp_path: Path, self_url: str, content_type: str) -> None:
    client = loopback_client()
    with open_database(tmp_path) as database:
        config = DeliveryConfig("http://hub.example/", schedule=RetrySchedule())
        delivery = Delivery(database, TableSubscribers(database), client, config, time.time)
        with pytest.raises(ContentRefusedError):
            await delivery.accept(TOPIC, self_url, Content(content_type, b"x"))
        assert database.read("SELECT count(*) FROM publications") == [(0,)]
    await client.close()
