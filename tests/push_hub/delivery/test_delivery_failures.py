"""When callbacks fail: retries, Retry-After, the breaker, giving up, leaving, and being too slow."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from push_hub.delivery import fanout, saver
from push_hub.delivery.batch import Batch
from push_hub.delivery.breaker import BreakerConfig
from push_hub.delivery.events import Delivered, DeliveryFailed, DeliveryStoreFailed, OutcomesSaved, SubscriptionGone
from push_hub.delivery.log import PublicationLog
from push_hub.model import HubSubscription
from storage import StorageError
from storage.backoff import RetrySchedule
from tests.push_hub.delivery.delivery_support import (
    OK,
    TOPIC,
    CallbackServer,
    TableSubscribers,
    quick_config,
    rig,
    status,
    subscribe,
)


def in_seconds() -> str:
    return "600"


def as_date() -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=601), usegmt=True)


@pytest.mark.parametrize("code", [429, 503])
@pytest.mark.parametrize("form", [in_seconds, as_date])
async def test_retry_after_is_honoured(tmp_path: Path, code: int, form: Callable[[], str]) -> None:
    busy = True

    def answer(*_: object) -> bytes:
        return status(code, f"Retry-After: {form()}") if busy else OK

    async with rig(tmp_path) as made, CallbackServer(answer) as server:
        subscribe(made.database, [server.url("/x")])
        await made.delivery.start()
        before = made.clock()
        await made.finished(await made.publish(b"x"))
        (owed,) = made.delivery.owed(1)
        assert owed.reason == f"the callback answered {code}"
        assert owed.next_try_at is not None
        assert before + 598 <= owed.next_try_at <= made.clock() + 602
        busy = False
        made.clock.ahead += 500
        other = "http://publisher.example/other"
        subscribe(made.database, [server.url("/other")], topic=other)
        await made.finished(await made.publish(b"y", other))  # it went round, and left the row alone
        assert [path for path, _, _ in server.requests] == ["/x", "/other"]
        await made.pass_time(110)
        assert [path for path, _, _ in server.requests] == ["/x", "/other", "/x"]
        assert made.rows("retries") == 0


async def test_a_host_that_cannot_be_reached_is_left_alone_and_probed(tmp_path: Path) -> None:
    config = replace(
        quick_config(per_host=1),
        breaker=BreakerConfig(failures=3, cooldown=100.0),
        schedule=RetrySchedule(first=10.0),
    )
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))  # and does not listen yet
        async with rig(tmp_path, config) as made:
            host, port = place.getsockname()
            subscribe(made.database, [f"http://{host}:{port}/{n}" for n in range(10)])
            await made.delivery.start()
            await made.finished(await made.publish(b"x"))
            assert len(made.seen.of(DeliveryFailed)) == 3
            assert made.delivery.counts.held_by_breaker == 7
            assert made.delivery.owed(10)[0].reason == "its host failed 3 times in a row: waiting"
            assert made.delivery.owed(10)[0].attempts == 0  # not its fault
            await made.pass_time(50)  # the three that failed are due, but the host is not
            assert len(made.seen.of(DeliveryFailed)) == 3
            await made.pass_time(60)
            assert len(made.seen.of(DeliveryFailed)) == 4  # one probe
            async with CallbackServer(listening=place) as server:
                while made.rows("retries"):
                    await made.pass_time(210)  # beyond the doubled cooldown
                assert sorted({path for path, _, _ in server.requests}) == [f"/{n}" for n in range(10)]
                assert len(made.seen.of(Delivered)) == 10


@pytest.mark.parametrize("how", ["500", "429", "no answer", "hangs up", "too long an answer"])
async def test_what_a_callback_answers_does_not_close_its_host(tmp_path: Path, how: str) -> None:
    """Nine of ten fail, whatever the way: the tenth has the same host, and gets everything at once."""
    answers = {
        "500": status(500),
        "429": status(429),
        "no answer": None,
        "hangs up": b"",
        "too long an answer": b"HTTP/1.1 200 X\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000,
    }

    def answer(path: str, _headers: dict[str, str], _body: bytes) -> bytes | None:
        return OK if path == "/good" else answers[how]

    config = replace(quick_config(timeout=0.1), breaker=BreakerConfig(failures=3), schedule=RetrySchedule(first=1000.0))
    async with rig(tmp_path, config) as made, CallbackServer(answer) as server:
        subscribe(made.database, [server.url(f"/{n}") for n in range(9)])
        await made.delivery.start()
        await made.finished(await made.publish(b"0"))
        await made.seen.count(DeliveryFailed, 9)
        subscribe(made.database, [server.url("/good")])
        for number in range(1, 4):
            await made.publish(b"%d" % number)
            await made.seen.count(Delivered, number)
        assert [body for path, _, body in server.requests if path == "/good"] == [b"1", b"2", b"3"]
        assert made.delivery.counts.held_by_breaker == 0


async def test_a_new_publication_is_tried_at_once_where_an_earlier_one_waits_and_behind_it(tmp_path: Path) -> None:
    broken = True
    config = replace(quick_config(), schedule=RetrySchedule(first=1000.0))
    async with rig(tmp_path, config) as made, CallbackServer(lambda *_: status(500) if broken else OK) as server:
        subscribe(made.database, [server.url("/x")])
        await made.delivery.start()
        await made.finished(await made.publish(b"0"))
        await made.seen.count(DeliveryFailed, 1)
        await made.seen.until(lambda: made.rows("retries") == 1)
        before = made.delivery.owed(1)[0]
        await made.publish(b"1")
        await made.seen.count(DeliveryFailed, 2)
        await made.seen.until(lambda: made.delivery.is_idle)
        owed = made.delivery.owed(1)
        # The try before its time does not count, and its time stays what it was.
        assert (owed[0].attempts, owed[0].next_try_at) == (before.attempts, before.next_try_at)
        assert owed[1].reason == "waiting behind an earlier publication"
        broken = False
        await made.publish(b"2")
        await made.nothing_owed()
        assert [body for _, _, body in server.requests] == [b"0", b"0", b"0", b"1", b"2"]


async def test_a_callback_that_said_when_to_come_back_is_not_asked_before_that(tmp_path: Path) -> None:
    async with rig(tmp_path) as made, CallbackServer(lambda *_: status(503, "Retry-After: 600")) as server:
        subscribe(made.database, [server.url("/x")])
        await made.delivery.start()
        await made.finished(await made.publish(b"0"))
    async with rig(tmp_path) as made:  # also by another process
        await made.delivery.start()
        await made.finished(await made.publish(b"1"))
        made.clock.ahead += 500
        await made.finished(await made.publish(b"2"))
        assert len(server.requests) == 1
        assert len(made.delivery.owed(1)) == 3


async def test_giving_up_makes_a_dead_letter_keeps_the_subscription_and_can_be_replayed(tmp_path: Path) -> None:
    broken = True
    async with rig(tmp_path) as made, CallbackServer(lambda *_: status(500) if broken else OK) as server:
        subscribe(made.database, [server.url("/x")])
        delivery = made.delivery
        await delivery.start()
        await made.publish(b"one")
        await made.seen.until(lambda: any(event.given_up for event in made.seen.of(DeliveryFailed)))
        await made.nothing_owed()
        (letter,) = delivery.dead_letters()
        assert (letter.attempts, letter.reason, letter.topic) == (4, "the callback answered 500", TOPIC)
        assert letter.callback == server.url("/x")
        assert len(server.requests) == 4
        broken = False
        await made.finished(await made.publish(b"two"))
        assert await delivery.replay(letter.id)
        await made.seen.count(Delivered, 2)
        assert [body for _, _, body in server.requests[4:]] == [b"two", b"one"]
        assert delivery.dead_letters() == []
        assert not await delivery.replay(letter.id)


async def test_giving_up_does_not_end_the_subscription_its_lease_does(tmp_path: Path) -> None:
    """H55."""
    async with rig(tmp_path) as made, CallbackServer(lambda *_: status(500)) as server:
        subscribe(made.database, [server.url("/x")], lease_until=made.clock() + 1000)
        await made.delivery.start()
        for number in range(3):  # every publication anew, however many were given up before
            await made.publish(b"%d" % number)
            await made.seen.until(lambda: sum(e.given_up for e in made.seen.of(DeliveryFailed)) == number + 1)  # noqa: B023
            await made.nothing_owed()
        assert [body for _, _, body in server.requests] == [b"0"] * 4 + [b"1"] * 4 + [b"2"] * 4
        assert made.rows("subscriptions") == 1
        made.clock.ahead += 1001
        await made.finished(await made.publish(b"late"))
        assert len(server.requests) == 12
        assert len(made.delivery.dead_letters()) == 3


async def test_410_ends_the_subscription_and_nothing_is_owed(tmp_path: Path) -> None:
    async with rig(tmp_path) as made, CallbackServer(lambda *_: status(410)) as server:
        subscribe(made.database, [server.url("/x")])
        await made.delivery.start()
        await made.finished(await made.publish(b"x"))
        assert [subscription.callback for subscription in made.gone] == [server.url("/x")]
        assert len(made.seen.of(SubscriptionGone)) == 1
        assert made.rows("retries") == 0
        (entry,) = made.delivery.history(1)
        assert (entry.status, entry.reason) == (410, "the callback answered 410: it is gone")


async def test_redirects_are_failures_and_are_not_followed(tmp_path: Path) -> None:
    async with rig(tmp_path) as made, CallbackServer(lambda *_: status(302, "Location: /elsewhere")) as server:
        subscribe(made.database, [server.url("/x")])
        await made.delivery.start()
        await made.publish(b"x")
        await made.seen.until(lambda: any(event.given_up for event in made.seen.of(DeliveryFailed)))
        assert {path for path, _, _ in server.requests} == {"/x"}


async def test_who_unsubscribed_between_queueing_and_the_retry_gets_nothing(tmp_path: Path) -> None:
    config = replace(quick_config(), schedule=RetrySchedule(first=100.0))
    async with rig(tmp_path, config) as made, CallbackServer(lambda *_: status(503)) as server:
        subscribe(made.database, [server.url("/leaves"), server.url("/stays")])
        await made.delivery.start()
        await made.finished(await made.publish(b"x"))
        made.database.write(lambda tx: tx.execute("DELETE FROM subscriptions WHERE id = 1")).result()
        await made.pass_time(200)
        await made.seen.until(lambda: made.delivery.is_idle)
        assert [path for path, _, _ in server.requests].count("/leaves") == 1
        assert [path for path, _, _ in server.requests].count("/stays") == 2
        assert made.delivery.owed(1) == []
        assert len(made.delivery.owed(2)) == 1


async def test_a_retry_is_signed_with_the_secret_of_now(tmp_path: Path) -> None:
    """Re-subscription replaces; what waits goes out by the new terms."""
    config = replace(quick_config(), schedule=RetrySchedule(first=100.0))
    async with rig(tmp_path, config) as made, CallbackServer(lambda *_: status(503)) as server:
        subscribe(made.database, [server.url("/x")], secret=b"old")
        await made.delivery.start()
        await made.finished(await made.publish(b"x"))
        made.database.write(lambda tx: tx.execute("UPDATE subscriptions SET secret = x'6e6577'")).result()
        await made.pass_time(200)
        first, second = (headers["x-hub-signature"] for _, headers, _ in server.requests)
        assert first != second


async def test_no_more_slow_ones_are_waited_for_than_the_bound_says(tmp_path: Path) -> None:
    config = replace(quick_config(slow_in_flight=2, slow_after=0.02, timeout=20.0), schedule=RetrySchedule(first=100.0))
    async with rig(tmp_path, config) as made, CallbackServer(lambda *_: None) as silent:
        subscribe(made.database, [silent.url(f"/{n}") for n in range(6)])
        await made.delivery.start()
        await made.finished(await made.publish(b"x"))
        await made.seen.until(lambda: made.rows("retries") == 6)
        assert made.client.under_way == 2
        reasons = sorted(made.delivery.owed(number)[0].reason for number in range(1, 7))
        assert reasons == ["no answer yet"] * 2 + ["waiting for room at its host"] * 4


async def test_outcomes_that_cannot_be_written_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "SAVE_RETRY", 0.0)
    failures = [StorageError("the disk is full")] * 2
    async with rig(tmp_path) as made, CallbackServer() as server:
        save = PublicationLog.save

        def failing(log: PublicationLog, batch: Batch, now: float) -> "Future[None]":
            if failures:
                raise failures.pop()
            return save(log, batch, now)

        monkeypatch.setattr(PublicationLog, "save", failing)
        subscribe(made.database, [server.url(f"/{n}") for n in range(3)])
        await made.delivery.start()
        await made.finished(await made.publish(b"x"))
        assert [event.reason for event in made.seen.of(DeliveryStoreFailed)] == ["the disk is full"] * 2
        assert made.rows("fanouts") == 0
        assert sum(event.deliveries for event in made.seen.of(OutcomesSaved)) == len(server.requests) == 3


async def test_subscribers_that_cannot_be_read_are_read_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "READ_RETRY", 0.0)
    failures = [StorageError("the disk is gone")] * 2
    page = TableSubscribers.page

    def failing(
        table: TableSubscribers, topic: str, after_id: int, limit: int, now: float
    ) -> Sequence[HubSubscription]:
        if failures:
            raise failures.pop()
        return page(table, topic, after_id, limit, now)

    monkeypatch.setattr(TableSubscribers, "page", failing)
    async with rig(tmp_path) as made, CallbackServer() as server:
        subscribe(made.database, [server.url(f"/{n}") for n in range(3)])
        await made.delivery.start()
        await made.finished(await made.publish(b"x"))
        assert [event.reason for event in made.seen.of(DeliveryStoreFailed)] == ["the disk is gone"] * 2
        assert len(server.requests) == 3


class EarlyLoop(asyncio.SelectorEventLoop):
    """Fires timers a little before their time, as a loop that counts whole milliseconds does."""

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return super().call_at(when - 0.002, callback, *args, context=context)


def test_a_timer_that_fires_early_is_not_the_last_one(tmp_path: Path) -> None:
    """Nothing but timers can tell that these callbacks are slow, and then that they time out."""

    async def scenario() -> None:
        config = replace(quick_config(slow_after=0.02, timeout=0.2), schedule=RetrySchedule(first=100.0))
        async with rig(tmp_path, config) as made, CallbackServer(lambda *_: None) as silent:
            subscribe(made.database, [silent.url(f"/{n}") for n in range(3)])
            await made.delivery.start()
            await made.finished(await made.publish(b"x"))
            failed = await made.seen.count(DeliveryFailed, 3)
            assert {event.reason for event in failed} == {"no complete answer within 0.2 seconds"}

    with asyncio.Runner(loop_factory=EarlyLoop) as runner:
        runner.run(scenario())
