"""What the one listener makes of events: plain values without secrets, logs, charts and ways, all bounded."""

import io
import json
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exchange.model import Draft, OriginId, Profile
from gateway.events import CrossingArrived, CrossingPublished
from gateway.model import Crossing
from gateway.telemetry.logs import JsonLog
from gateway.telemetry.observers import both
from gateway.telemetry.plain import plain, without_keys
from gateway.telemetry.recorder import DELIVERIES_SHOWN, MAX_TOPICS, STEPS_PER_WAY, WAYS_PER_TOPIC
from gateway.telemetry.series import SECONDS_KEPT, EventRate, Latency
from gateway.telemetry.telemetry import EVENTS_KEPT, Telemetry
from identifiers import Identifier, ItemId
from push_hub.delivery.events import Delivered, DeliveryFailed, FanoutFinished, OutcomesSaved, PublicationAccepted
from push_hub.events import PingAccepted, PingArrived, PingRefused
from push_hub.intake.events import FetchFailed, PingsUnwanted, TopicFetched
from push_hub.model import Dialect, HubSubscription, SignatureMethod
from serving.events import LimitReached, RequestBroke
from tests.gateway.admin.admin_world import admin_world
from tests.waiting import until

TOPIC = "http://b.example/feed"
ITEM = ItemId(Identifier(b"\1" * 32), Identifier(b"\2" * 32))
VERSION = Identifier(b"\3" * 32)
WHO = HubSubscription(
    5, TOPIC, "http://user:pass@a.example/cb?key=k3y#part", b"s3cret", SignatureMethod.SHA256, Dialect.WEBSUB, 1e12
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


ORIGIN = OriginId(b"\4" * 16, 7)
CROSSING = Crossing(
    Draft(ITEM, TOPIC, Profile.DOCUMENT, "text/plain", b"x" * 100, published_ms=999_900, origin=ORIGIN), VERSION
)


def published_here(telemetry: Telemetry, clock: Clock, number: int = 1) -> None:
    telemetry.observe(PingArrived(TOPIC))
    clock.now += 0.01
    telemetry.observe(PublicationAccepted(number, TOPIC, 100, clock.now))
    clock.now += 0.01
    telemetry.observe(TopicFetched(TOPIC, 200, True, 1))
    telemetry.observe(CrossingPublished(Profile.DOCUMENT, TOPIC, ITEM, VERSION, 100, ORIGIN))


def test_what_is_secret_is_in_no_plain_value() -> None:
    known = str(plain(Delivered(1, WHO, 200, 1, 3.0))) + str(plain(DeliveryFailed(1, WHO, "no", 1, False, 3.0)))
    for secret in ("s3cret", "pass", "k3y", "part"):
        assert secret not in known
    assert "http://a.example/cb?…" in known
    assert plain(CrossingPublished(Profile.DOCUMENT, TOPIC, ITEM, VERSION, 1, ORIGIN))["version"] == str(VERSION)


@given(st.text(max_size=60))
def test_an_address_never_keeps_its_query_whatever_it_is(text: str) -> None:
    assert "k3y" not in without_keys(f"http://a.example/{text.replace('?', '').replace('#', '')}?k3y={text}")


def test_a_value_that_nobody_thought_of_stays_out() -> None:
    @dataclass(frozen=True, slots=True)
    class Strange:
        body: bytes
        reason: str

    assert plain(Strange(b"s3cret", "r")) == {"reason": "r"}


def test_a_publication_of_this_domain_is_one_way_from_ping_to_callback() -> None:
    clock = Clock()
    telemetry = Telemetry(clock)
    published_here(telemetry, clock)
    telemetry.observe(Delivered(1, WHO, 204, 1, clock.now + 0.5))
    telemetry.observe(FanoutFinished(1, clock.now + 0.6))
    (way,) = telemetry.recorder.ways(TOPIC)
    assert [step.what for step in way.steps] == [
        "the publisher pinged",
        "the hub accepted it",
        "the fetch was written down",
        "published in the network",
        "delivered, status 204",
        "everyone was sent to",
    ]
    assert (way.publication, way.version, way.delivered) == (1, str(VERSION), 1)
    assert telemetry.recorder.of_id(str(VERSION)) is way
    assert telemetry.intake.histogram.total == pytest.approx(0.01)
    assert telemetry.export.histogram.total == pytest.approx(0.01)
    assert telemetry.delivery.histogram.count == 1
    assert telemetry.faults == 0


def test_a_publication_from_the_network_is_joined_with_what_the_hub_makes_of_it() -> None:
    telemetry = Telemetry(Clock(), Clock())
    telemetry.observe(CrossingArrived(TOPIC, ITEM, VERSION, 999_900, 100, is_own=False, crossing=CROSSING))
    telemetry.observe(PublicationAccepted(9, TOPIC.replace("http:", "https:"), 100, 1000.1))
    (way,) = telemetry.recorder.ways(TOPIC)
    assert (way.publication, way.version, way.from_network) == (9, str(VERSION), True)
    assert telemetry.crossing.histogram.total == pytest.approx(0.1)
    assert telemetry.from_network == 1


@pytest.mark.parametrize("end", [PingAccepted(TOPIC), PingRefused(TOPIC), PingsUnwanted([TOPIC])], ids=repr)
def test_a_ping_is_counted_with_what_came_of_it_and_with_nothing_later(end: object) -> None:
    clock = Clock()
    telemetry = Telemetry(clock)
    telemetry.observe(PingArrived(TOPIC))
    expected = 0
    if isinstance(end, PingAccepted):  # a quick one is acknowledged together with its publication, and told after it
        telemetry.observe(PublicationAccepted(1, TOPIC, 10, clock.now + 0.01))
        expected = 1
    telemetry.observe(end)
    telemetry.observe(PublicationAccepted(2, TOPIC, 10, clock.now + 500.0))
    assert telemetry.intake.histogram.count == expected
    assert telemetry.intake.histogram.total == pytest.approx(0.01 * expected)


def test_pings_that_come_to_nothing_leave_no_way() -> None:
    telemetry = Telemetry(Clock())
    telemetry.observe(PingArrived(TOPIC))
    telemetry.observe(TopicFetched(TOPIC, 304, False, None))
    assert telemetry.recorder.ways(TOPIC) == []
    telemetry.observe(PingArrived(TOPIC))
    telemetry.observe(FetchFailed(TOPIC, "no answer", None))
    telemetry.observe(PublicationAccepted(1, TOPIC, 10, 1001.0))
    (way,) = telemetry.recorder.ways(TOPIC)
    assert "the fetch failed" in [step.what for step in way.steps]


def test_everything_is_bounded() -> None:
    clock = Clock()
    telemetry = Telemetry(clock)
    for number in range(MAX_TOPICS + 50):
        telemetry.observe(PublicationAccepted(number, f"http://b.example/{number}", 1, 1.0))
    assert len(telemetry.recorder._topics) == MAX_TOPICS
    for number in range(10_000, 10_000 + 3 * WAYS_PER_TOPIC):
        telemetry.observe(PublicationAccepted(number, TOPIC, 1, 1.0))
    assert len(telemetry.recorder.ways(TOPIC)) == WAYS_PER_TOPIC
    last = 10_000 + 3 * WAYS_PER_TOPIC - 1
    for _ in range(1000):
        telemetry.observe(Delivered(last, WHO, 200, 1, 2.0))
        telemetry.observe(DeliveryFailed(last, WHO, "no", 1, False, 2.0))
    way = telemetry.recorder.way_of(last, None)
    assert way is not None
    assert way.delivered == 1000
    assert len(way.steps) == STEPS_PER_WAY
    assert sum(step.what.startswith("delivered") for step in way.steps) == DELIVERIES_SHOWN
    assert len(telemetry.events) == EVENTS_KEPT


def test_an_event_that_cannot_be_taken_in_is_counted_and_hurts_nobody() -> None:
    telemetry = Telemetry(Clock())
    telemetry.observe(PublicationAccepted(1, TOPIC, 1, None))  # type: ignore[arg-type]
    telemetry.observe(object())
    assert telemetry.faults == 1


def test_two_listeners_are_told_and_one_is_not_wrapped() -> None:
    heard: list[object] = []
    assert both(None, None) is None
    assert both(heard.append, None) == heard.append
    tell = both(heard.append, heard.append)
    assert tell is not None
    tell(1)
    assert heard == [1, 1]


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 400)), max_size=200))
def test_charts_keep_two_minutes_and_histograms_everything(samples: list[tuple[float, float]]) -> None:
    latency, rate = Latency(), EventRate()
    now = 0.0
    for delay, at in sorted(samples, key=lambda sample: sample[1]):
        latency.add(delay, at)
        rate.add(at)
        now = at
    assert latency.histogram.count == rate.total == len(samples)
    points = latency.points(now + 1)
    assert len(points) <= SECONDS_KEPT
    assert all(now + 1 - SECONDS_KEPT < point.second <= now for point in points)
    assert all(point.median is not None and point.high is not None and point.median <= point.high for point in points)
    assert sum(point.count for point in rate.points(now + 1)) <= len(samples)


def test_a_line_of_the_log_has_both_ids_and_a_level() -> None:
    clock = Clock()
    telemetry = Telemetry(clock)
    out = io.StringIO()
    log = JsonLog(out, "gate", clock)
    log.way_of = telemetry.recorder.way_of
    log.start()
    observe = both(telemetry.observe, log.observe)
    assert observe is not None
    published_here(telemetry, clock)
    for event in (
        CrossingPublished(Profile.DOCUMENT, TOPIC, ITEM, VERSION, 100, ORIGIN),
        Delivered(1, WHO, 200, 1, 1.0),
        Delivered(1, WHO, 200, 2, 1.0),
        OutcomesSaved(1, 1.0),
        DeliveryFailed(1, WHO, "the callback answered 503", 1, False, 1.0),
        FanoutFinished(1, 1.0),
        RequestBroke("oh"),
        LimitReached("per_client"),
    ):
        observe(event)
    log.close()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["event"] for line in lines] == [
        "CrossingPublished",
        "Delivered",
        "DeliveryFailed",
        "FanoutFinished",
        "RequestBroke",
        "LimitReached",
    ]
    assert [line["level"] for line in lines] == ["info", "info", "warning", "info", "error", "warning"]
    for line in lines[1:4]:
        assert (line["publication"], line["version"]) == (1, str(VERSION))
    assert lines[3]["delivered"] == 2
    assert all(line["gateway"] == "gate" and line["time"].startswith("1970-01-01T00:16:40") for line in lines)
    for secret in ("s3cret", "pass", "k3y"):
        assert secret not in out.getvalue()


def test_who_reads_the_log_slowly_loses_lines_and_holds_up_nothing() -> None:
    entered, go_on = threading.Event(), threading.Event()

    class Slow(io.StringIO):
        def write(self, text: str) -> int:
            entered.set()
            go_on.wait(10)
            return super().write(text)

    out = Slow()
    log = JsonLog(out, "gate", max_waiting=5)
    log.start()
    log.observe(LimitReached("first"))
    assert entered.wait(10)
    for _ in range(20):
        log.observe(LimitReached("more"))
    assert log.dropped == 15
    go_on.set()
    log.close()
    assert len(out.getvalue().splitlines()) == 6


async def test_secrets_are_in_no_page_log_or_metric(tmp_path: Path) -> None:
    """A subscription with a secret, and a callback whose address has a key, through both domains."""
    async with admin_world(tmp_path) as world:
        out = io.StringIO()
        log = JsonLog(out, "gate")
        log.start()
        telemetry = world.admin.telemetry
        take = telemetry.observe
        seen: list[object] = []
        world.a.hub._running.delivery._observer = lambda event: (take(event), log.observe(event), seen.append(event))  # type: ignore[assignment, func-returns-value]
        form = {"hub.mode": "subscribe", "hub.topic": world.blog.topic, "hub.secret": "s3cret-of-subscriber"}
        form["hub.callback"] = f"{world.reader.callback}?key=k3y-of-callback"
        async with world.http.post(world.a.hub.url, data=form) as answer:
            assert answer.status == 202
        await until(lambda: world.a.hub.subscriptions.count(world.blog.topic))
        await world.publish()
        await until(lambda: any(isinstance(event, Delivered) for event in seen))
        log.close()
        pages = [
            await world.get("/metrics"),
            json.dumps(await world.get("/api/snapshot")),
            json.dumps(await world.get("/api/ways", topic=world.blog.topic)),
            json.dumps(await world.get("/api/topics", q="feed")),
            out.getvalue(),
        ]
        assert "PublicationAccepted" in out.getvalue()
        for page in pages:
            assert "s3cret-of-subscriber" not in page
            assert "k3y-of-callback" not in page
        assert "s3cret-of-subscriber" not in json.dumps(await world.get("/api/topic", topic=world.blog.topic))
