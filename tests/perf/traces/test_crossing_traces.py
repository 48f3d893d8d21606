"""One publication's steps in both domains belong together: real gateways, an emulated and a simulated network."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import ClientSession

from exchange.model import Profile
from gateway.cli.trace_events import observer_for
from gateway.gateway import Gateway, gateway_config
from gateway.protocols.psirp.envelope import ENVELOPE_VERSION, Header, seal
from identifiers import DEFAULT_NAMING, Topic
from perf.traces.formats import Format
from perf.traces.gateway_events import Arrived, GatewayTracer
from perf.traces.naming import document_in, items_of, publication_name
from perf.traces.psirp_events import NetworkTracer, virtual_clock
from perf.traces.run import TRACES, new_run
from perf.traces.sampling import Sampler
from perf.traces.writer import TraceWriter, WriterConfig
from psirp_stack.emulation.network import EmulatedNetwork, socket_of
from psirp_stack.emulation.plan import plan
from psirp_stack.emulation.simulation import WALL_MS_AT_START, SimulatedNetwork
from psirp_stack.node.config import TimesFile
from push_hub.canary import CanaryConfig
from push_hub.delivery.events import Delivered
from push_hub.events import IntentAsked
from push_hub.hub import Hub, HubConfig
from tests.gateway.crossing.test_crossing import Publisher, Subscriber, feed
from tests.psirp_stack.simulated import item, line
from tests.waiting import until

Row = dict[str, object]
LINES = WriterConfig(Format.JSON_LINES)
TOPIC = "http://news.example/feed"
ITEM = DEFAULT_NAMING.of_topic(Topic.parse(TOPIC))


def rows_of(run: Path) -> list[Row]:
    found: list[Row] = []
    for path in sorted((run / TRACES).glob("*.jsonl")):
        found.extend(json.loads(line) for line in path.read_text().splitlines())
    return sorted(found, key=lambda row: row["monotonic_ns"])  # type: ignore[arg-type, return-value]


def writer_for(directory: Path) -> TraceWriter:
    return TraceWriter(directory, new_run("test", "v", {}, name="r"), LINES)


@asynccontextmanager
async def gateway(data: Path, node: str, tracer: GatewayTracer) -> AsyncIterator[Gateway]:
    hub = HubConfig(data / f"gate-{node}" / "hub", allow_private=True, canary=CanaryConfig(enabled=False))
    config = gateway_config(data / f"gate-{node}", hub, attach=socket_of(data / "net", node))
    running = Gateway(config, observer=observer_for(tracer))
    await running.start()
    try:
        yield running
    finally:
        await running.stop()
        tracer.flush()


async def test_a_publication_is_followed_from_ping_to_callback_across_the_network(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    items = items_of(DEFAULT_NAMING)
    with writer_for(tmp_path / "run") as writer:
        forwarders = NetworkTracer(writer, ends=False)
        shape = plan({"generate": {"kind": "line", "nodes": 4}}, tmp_path)
        network = await EmulatedNetwork.start(shape, tmp_path / "net", TimesFile(hello=0.1), forwarders)
        await network.settled()
        async with (
            ClientSession() as http,
            Publisher() as publisher,
            Subscriber() as subscriber,
            Subscriber() as neighbour,
            gateway(tmp_path, "n3", GatewayTracer(writer, "a", items)) as a,
            gateway(tmp_path, "n0", GatewayTracer(writer, "b", items)) as b,
        ):
            ping = {"hub.mode": "publish", "hub.url": publisher.topic}
            first, topic = publisher.body, DEFAULT_NAMING.of_topic(Topic.parse(publisher.topic))
            subscribe = {"hub.mode": "subscribe", "hub.topic": publisher.topic}
            await http.post(b.hub.url, data=subscribe | {"hub.callback": neighbour.callback})
            await until(lambda: b.hub.subscriptions.count(publisher.topic))
            await http.post(b.hub.url, data=ping)
            await until(lambda: neighbour.received)
            await until(lambda: network.nodes["n0"].node.request_table.published_items == 1)
            await http.post(a.hub.url, data=subscribe | {"hub.callback": subscriber.callback})
            await until(lambda: subscriber.received)
            second = publisher.body = feed("second")
            await http.post(b.hub.url, data=ping)
            await until(lambda: len(subscriber.received) == 2)
        await network.close()
    rows = rows_of(tmp_path / "run")
    crossed = [row for row in rows if row["publication"] == publication_name(topic, second)]
    at_home = [row for row in crossed if (row["step"], row["node"]) in {("delivered", "b"), ("finished", "b")}]
    assert [row["step"] for row in at_home] == ["delivered", "finished"], "the neighbour of the publisher has it too"
    crossed = [row for row in crossed if row not in at_home]
    told = [(row["step"], row["node"], row["domain"]) for row in crossed if row["step"] != "finished"]
    # The hub tells of what it accepted when that is on disk, and its other readers may be quicker to hear of it.
    assert [step for step in told if step[1:] == ("b", "push")] == [
        ("pinged", "b", "push"),
        ("fetched", "b", "push"),
        ("accepted", "b", "push"),
    ]
    assert [step for step in told if step[1:] != ("b", "push")] == [
        ("published", "b", "psirp"),
        ("forwarded", "n1", "psirp"),
        ("forwarded", "n2", "psirp"),
        ("received", "a", "psirp"),
        ("relayed", "a", "push"),
        ("delivered", "a", "push"),
    ]
    hops = {row["node"]: row.get("hop") for row in crossed if row["domain"] == "psirp"}
    assert hops == {"b": 0, "n1": 1, "n2": 2, "a": 3}
    joined = [row for row in rows if str(row["publication"]).startswith(publication_name(topic, first) + "@a")]
    steps = [row["step"] for row in joined if row["step"] != "finished"]
    assert steps == ["subscribe_arrived", "subscribe_issued", "received", "relayed", "delivered"]
    assert {row["payload"] for row in joined} == {len(first)}


def test_a_simulation_writes_the_same_records_on_its_own_clock(tmp_path: Path) -> None:
    with writer_for(tmp_path / "run") as writer:
        found: list[NetworkTracer] = []
        network = SimulatedNetwork(
            line(4),
            tmp_path,
            tap=lambda *told: [tracer.tap(*told) for tracer in found],
            observer_of=lambda node: lambda event: [tracer.observer_of(node)(event) for tracer in found] and None,
        )
        found.append(NetworkTracer(writer, clock=virtual_clock(network.clock, WALL_MS_AT_START * 1_000_000)))
        network.run(5.0)
        subscriber, publisher = network.application("n3"), network.application("n0")
        subscriber.subscribe(item(5))
        network.run(1.0)
        publisher.publish(item(5), b"x" * 2000)
        assert network.run_until(lambda: bool(subscriber.contents(item(5))), 5.0)
        network.close()
    rows = rows_of(tmp_path / "run")
    control = [row for row in rows if str(row["step"]).startswith("control")]
    rows = [row for row in rows if row not in control]
    # Messages to and from the rendezvous at n0, at both ends.
    assert {(row["step"], row["node"]) for row in control} >= {
        (step, node) for step in ("control_sent", "control_arrived") for node in ("n0", "n3")
    }
    assert {row["publication"] for row in rows} == {publication_name(item(5), b"x" * 2000)}
    assert {(row["step"], row["node"], row["hop"]) for row in rows} == {
        ("published", "n0", 0),
        ("forwarded", "n1", 1),
        ("forwarded", "n2", 2),
        ("received", "n3", 3),
    }
    assert {row["clock"] for row in rows} == {"simulated"}
    assert all(6e9 <= row["monotonic_ns"] <= 12e9 for row in rows)  # type: ignore[operator]


def test_the_document_is_found_in_what_gateways_send() -> None:
    content = seal(Header(ENVELOPE_VERSION, Profile.DOCUMENT, TOPIC, "text/plain", (("self", TOPIC),)), b"the document")
    assert document_in(content) == b"the document"
    for broken in (b"", b"abc", b"\xff\xff\xff\xffrest"):
        assert document_in(broken) == broken


class Times:
    """A clock that says one second more each time."""

    def __init__(self) -> None:
        self.seconds = 0

    def __call__(self) -> tuple[int, int]:
        self.seconds += 1
        return self.seconds * 10**9, self.seconds * 10**9


def test_what_is_published_after_it_was_asked_for_begins_with_its_publication(tmp_path: Path) -> None:
    with writer_for(tmp_path) as writer:
        tracer = GatewayTracer(writer, "a", items_of(DEFAULT_NAMING), clock=Times())
        tracer.observe_hub(IntentAsked("subscribe", TOPIC, "http://callback.example/"))
        tracer.asked(ITEM)
        tracer.arrived(Arrived(ITEM, TOPIC, b"late", b"v1", published_ms=2_500, hops=2))
    assert [(row["step"], row["publication"]) for row in rows_of(tmp_path)] == [
        ("received", publication_name(ITEM, b"late"))
    ]


def test_failures_of_publishing_and_other_takers_are_told(tmp_path: Path) -> None:
    with writer_for(tmp_path) as writer:
        tracer = GatewayTracer(writer, "a", items_of(DEFAULT_NAMING), clock=Times())
        tracer.offered(ITEM, TOPIC, b"d", starts_here=True)
        tracer.publish_failed(TOPIC, lasting=False)
        tracer.offered(ITEM, TOPIC, b"d")
        tracer.published(TOPIC)
        tracer.published("http://never.offered/")
        tracer.arrived(Arrived(ITEM, TOPIC, b"e", b"v2", 0, 1))
        tracer.arrived(Arrived(ITEM, TOPIC, b"d", b"v3", 0, None))
        tracer.handed_over(b"v3", "readers")
        tracer.handed_over(b"v2", "chat")
        tracer.handed_over(b"unknown", "chat")
    told = [(row["step"], row["outcome"], row.get("delivery")) for row in rows_of(tmp_path)]
    assert sorted(told, key=str) == sorted(
        [
            ("accepted", "ok", None),
            ("published", "retried", None),
            ("published", "ok", None),
            ("received", "ok", None),
            ("delivered", "ok", "chat"),
            ("delivered", "ok", "readers"),
        ],
        key=str,
    )


def test_what_is_not_sampled_leaves_nothing(tmp_path: Path) -> None:
    with writer_for(tmp_path) as writer:
        tracer = GatewayTracer(writer, "a", items_of(DEFAULT_NAMING), sampler=Sampler(0.0))
        tracer.offered(ITEM, TOPIC, b"d", starts_here=True)
        tracer.published(TOPIC)
        tracer.arrived(Arrived(ITEM, TOPIC, b"e", b"v", 0, 1))
    assert rows_of(tmp_path) == []


def test_a_topic_that_has_no_ids_cannot_cross_and_is_asked_for_once() -> None:
    items = items_of(DEFAULT_NAMING)
    assert items("not a url") is None
    assert items(TOPIC) == items(TOPIC) == ITEM


async def test_a_tracer_that_fails_stops_no_delivery(tmp_path: Path) -> None:
    def broken(event: object) -> None:
        if type(event) is Delivered:
            raise RuntimeError("a fault in whoever observes")

    hub = Hub(HubConfig(tmp_path, allow_private=True, canary=CanaryConfig(enabled=False)), observer=broken)
    await hub.start()
    try:
        async with ClientSession() as http, Publisher() as publisher, Subscriber() as subscriber:
            form = {"hub.mode": "subscribe", "hub.topic": publisher.topic, "hub.callback": subscriber.callback}
            await http.post(hub.url, data=form)
            await until(lambda: hub.subscriptions.count(publisher.topic) == 1)
            for number in range(3):
                publisher.body = feed(f"entry {number}")
                await http.post(hub.url, data={"hub.mode": "publish", "hub.url": publisher.topic})
                await until(lambda wanted=number + 1: len(subscriber.received) == wanted)  # type: ignore[misc]
            await until(lambda: hub.delivery.observer_errors == 3)
    finally:
        await hub.stop()
