"""Delivery over real sockets and a real file: what arrives, in what order, and what does not hold up what."""

import hashlib
import hmac
import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from push_hub.delivery import ContentRefusedError, DeliveryConfig, DeliveryOverloadedError
from push_hub.delivery.events import Delivered, FanoutFinished
from push_hub.model import Content, Dialect
from storage.backoff import RetrySchedule
from tests.push_hub.delivery.delivery_support import OK, TOPIC, CallbackServer, quick_config, rig, status, subscribe

ATOM = Content("application/atom+xml; charset=utf-8", b"<feed>all</feed>", b"<feed>new</feed>")
LINK = '<http://hub.example/>; rel="hub", <http://publisher.example/self>; rel="self"'


async def test_every_subscriber_gets_the_exact_body_type_links_and_its_own_signature(tmp_path: Path) -> None:
    async with rig(tmp_path) as made, CallbackServer() as server:
        delivery = made.delivery
        for n in range(5):
            subscribe(made.database, [server.url(f"/{n}?a&a=2")], secret=b"secret %d" % n)
        subscribe(made.database, [server.url("/plain")])
        subscribe(made.database, [server.url("/old")], dialect=Dialect.PUSH_03)
        subscribe(made.database, [server.url("/over")], lease_until=1.0)
        await delivery.start()
        publication = await delivery.accept(TOPIC, "http://publisher.example/self", ATOM)
        await made.finished(publication.id)
        assert len(server.requests) == 7
        assert {path for path, _, _ in server.requests} == {*(f"/{n}?a&a=2" for n in range(5)), "/plain", "/old"}
        for path, headers, body in server.requests:
            assert headers["content-type"] == "application/atom+xml; charset=utf-8"
            assert headers["link"] == LINK
            assert body == (ATOM.changes if path == "/old" else ATOM.body)
            expected = None
            if "?" in path:
                expected = "sha256=" + hmac.new(b"secret " + path[1:2].encode(), body, hashlib.sha256).hexdigest()
            assert headers.get("x-hub-signature") == expected
        assert delivery.latest(TOPIC) == [publication]
        assert delivery.since(TOPIC, 0) == [publication]
        assert delivery.since(TOPIC, publication.id) == []


async def test_a_body_of_several_megabytes_is_sent_without_asking_first(tmp_path: Path) -> None:
    async with rig(tmp_path) as made, CallbackServer() as server:
        subscribe(made.database, [server.url("/x")])
        await made.delivery.start()
        body = b"x" * (3 << 20)
        await made.publish(body)
        await made.seen.count(Delivered, 1)
        ((_, headers, received),) = server.requests
        assert received == body
        assert "expect" not in headers


async def test_a_failure_is_retried_and_later_publications_wait_behind_it(tmp_path: Path) -> None:
    failures = 2

    def answer(path: str, _headers: dict[str, str], _body: bytes) -> bytes:
        nonlocal failures
        if path == "/bad" and failures:
            failures -= 1
            return status(503)
        return OK

    async with rig(tmp_path) as made, CallbackServer(answer) as server:
        subscribe(made.database, [server.url("/bad"), server.url("/good")])
        await made.delivery.start()
        for n in range(3):
            await made.publish(b"%d" % n)
        await made.seen.count(Delivered, 6)
        await made.nothing_owed()
        assert [body for path, _, body in server.requests if path == "/good"] == [b"0", b"1", b"2"]
        assert [body for path, _, body in server.requests if path == "/bad"] == [b"0", b"0", b"0", b"1", b"2"]


@pytest.mark.parametrize("seed", range(3))
async def test_order_for_a_callback_is_kept_whatever_fails(tmp_path: Path, seed: int) -> None:
    """Several topics, several callbacks on two hosts, a third of all tries fails: each callback sees each topic's
    publications in order, each once."""
    rng = random.Random(seed)
    got: dict[str, list[bytes]] = defaultdict(list)

    def answer(path: str, _headers: dict[str, str], body: bytes) -> bytes:
        if rng.random() < 0.33:
            return status(rng.choice([429, 500, 503]))
        got[path].append(body)
        return OK

    config = replace(quick_config(page=3, chunk=12, in_flight=4, per_host=2), schedule=RetrySchedule(first=1.0))
    async with rig(tmp_path, config) as made, CallbackServer(answer) as one, CallbackServer(answer) as two:
        topics = ["http://publisher.example/a", "http://publisher.example/b"]
        for topic in topics:
            for server in (one, two):
                subscribe(made.database, [server.url(f"/{server.port}/{n}?{topic}") for n in range(4)], topic=topic)
        await made.delivery.start()
        for n in range(4):
            for topic in topics:
                await made.publish(b"%d" % n, topic)
        await made.seen.until(lambda: len(made.seen.of(FanoutFinished)) == 8)
        while made.rows("retries"):
            await made.pass_time(300.0)  # past any backoff and row put off
        assert len(got) == 16
        assert all(bodies == [b"0", b"1", b"2", b"3"] for bodies in got.values())


async def test_callbacks_that_never_answer_do_not_hold_back_the_others(tmp_path: Path) -> None:
    config = quick_config(in_flight=8, page=16, chunk=128, per_host=4, slow_per_host=4, slow_after=0.02)
    async with rig(tmp_path, config) as made, CallbackServer() as fast, CallbackServer(lambda *_: None) as silent:
        subscribe(made.database, [silent.url(f"/{n}") for n in range(40)])
        subscribe(made.database, [fast.url(f"/{n}") for n in range(60)])
        await made.delivery.start()
        await made.finished(await made.publish(b"x"))
        # On a busy machine some of the fast ones were slow too, and became rows that are settled by now or soon.
        await made.seen.until(lambda: made.rows("retries") == 40)
        assert len(fast.requests) == 60
        assert len(silent.requests) <= 4  # its host's limit
        assert made.delivery.owed(1)[0].reason == "no answer yet"


async def test_a_small_topic_does_not_wait_for_a_large_one(tmp_path: Path) -> None:
    config = quick_config(in_flight=4, page=8, chunk=32)
    async with rig(tmp_path, config) as made, CallbackServer() as server:
        subscribe(made.database, [server.url(f"/large/{n}") for n in range(400)], topic="http://p.example/large")
        subscribe(made.database, [server.url(f"/small/{n}") for n in range(3)], topic="http://p.example/small")
        await made.publish(b"x", "http://p.example/large")  # both are on disk before anything is sent
        await made.publish(b"x", "http://p.example/small")
        await made.delivery.start()
        await made.seen.count(FanoutFinished, 2)
        places = [place for place, (path, _, _) in enumerate(server.requests) if path.startswith("/small")]
        assert len(places) == 3
        assert max(places) < 50


async def test_a_restart_takes_up_where_the_cursor_is(tmp_path: Path) -> None:
    async with rig(tmp_path) as made, CallbackServer() as server:
        subscribe(made.database, [server.url(f"/{n}") for n in range(10)])
        publication = await made.publish(b"x")  # not started: it only goes to disk
        made.database.write(lambda tx: tx.execute("UPDATE fanouts SET position = 7")).result()
        await made.delivery.start()
        await made.finished(publication)
        assert sorted(path for path, _, _ in server.requests) == ["/7", "/8", "/9"]
        assert made.rows("fanouts") == 0


async def test_stopping_writes_down_what_is_known(tmp_path: Path) -> None:
    """Positions wait for company; a stop does not leave them behind, so nothing is sent twice."""
    async with CallbackServer() as server:
        async with rig(tmp_path) as made:
            subscribe(made.database, [server.url(f"/{n}") for n in range(20)])
            await made.delivery.start()
            await made.publish(b"x")
            await made.seen.count(Delivered, 20)
        async with rig(tmp_path) as made:
            assert made.rows("fanouts") == 0
            assert made.rows("retries") == 0
    assert len(server.requests) == 20


async def test_too_large_a_backlog_is_refused_with_a_time_to_come_back(tmp_path: Path) -> None:
    config = DeliveryConfig("http://hub.example/", max_backlog=0, overload_retry_after=7.0)
    async with rig(tmp_path, config) as made:
        with pytest.raises(DeliveryOverloadedError) as refused:
            await made.publish(b"x")
        assert refused.value.retry_after == 7.0
        assert made.rows("publications") == 0


@pytest.mark.parametrize(
    ("self_url", "content_type"), [("http://x/>", "text/plain"), (TOPIC, "text/plain\r\nX-Evil: 1"), (TOPIC, "café☃")]
)
async def test_what_would_break_a_header_is_refused(tmp_path: Path, self_url: str, content_type: str) -> None:
    async with rig(tmp_path) as made:
        with pytest.raises(ContentRefusedError):
            await made.delivery.accept(TOPIC, self_url, Content(content_type, b"x"))
        assert made.rows("publications") == 0
