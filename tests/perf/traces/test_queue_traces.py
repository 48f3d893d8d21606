"""Every queue of two gateways leaves records of its own, and so do links, sessions and callbacks that come and go."""

import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from aiohttp import ClientSession

from exchange.exchange import Exchange
from exchange.model import FROM_NOW, Interest, SessionKey
from exchange.session_queues import session_resource
from exchange.sqlite import EXCHANGE_TABLES, SqliteLog, SqliteSessions
from gateway.cli.trace_events import observer_for
from gateway.gateway import Gateway, gateway_config
from identifiers import DEFAULT_NAMING
from perf.traces.files import FileState, take_inventory
from perf.traces.gateway_events import GatewayTracer
from perf.traces.naming import items_of
from perf.traces.queue_events import QueueTracer
from perf.traces.schema import TraceStep
from perf.traces.writer import TraceWriter
from psirp_stack.node.config import check as check_node
from push_hub.canary import CanaryConfig
from push_hub.delivery.breaker import BreakerConfig
from push_hub.hub import HubConfig
from push_hub.intake import IntakeConfig
from push_hub.intake.parsers import ParserPool
from push_hub.intake.threads import Threads
from serving.fairness import KnownPrefixes
from storage import Database
from storage.queues import ConnectionChange, QueueStay
from tests.exchange.engine_suite import ITEM, draft
from tests.exchange.test_exchange import ANA, QUICK, Notes
from tests.gateway.crossing.test_crossing import Publisher, Subscriber, feed
from tests.gateway.gateway_process import free_udp_ports
from tests.perf.traces.test_crossing_traces import rows_of, writer_for
from tests.push_hub.delivery.delivery_support import CallbackServer, quick_config, rig, subscribe
from tests.push_hub.intake.feeds import Item, odd
from tests.waiting import until

Told = list[QueueStay | ConnectionChange]


@asynccontextmanager
async def traced_gateway(data: Path, name: str, ports: tuple[int, int], writer: TraceWriter) -> AsyncIterator[Gateway]:
    node = check_node(
        {
            "name": name,
            "roles": ["rendezvous", "topology"] if name == "a" else [],
            "domain": {"open": True, "rendezvous": ["a"], "topology": ["a"]},
            "times": {"hello": 0.1},
            "data": str(data / name / "node"),
            "links": [{"udp": f"127.0.0.1:{ports[0]}", "peer": f"127.0.0.1:{ports[1]}"}],
        }
    )
    hub = HubConfig(data / name / "hub", allow_private=True, canary=CanaryConfig(enabled=False))
    tracer = GatewayTracer(writer, name, items_of(DEFAULT_NAMING))
    queues = QueueTracer(writer, name)
    gateway = Gateway(gateway_config(data / name, hub, node=node), observer=observer_for(tracer), queues=queues.observe)
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop()
        tracer.flush()


async def test_every_queue_on_the_way_of_a_publication_leaves_a_record(tmp_path: Path) -> None:
    here, there = free_udp_ports(2)
    with writer_for(tmp_path / "run") as writer:
        async with (
            ClientSession() as http,
            Publisher() as publisher,
            Subscriber() as subscriber,
            traced_gateway(tmp_path, "a", (here, there), writer) as a,
            traced_gateway(tmp_path, "b", (there, here), writer) as b,
        ):
            wanted = {"hub.mode": "subscribe", "hub.topic": publisher.topic, "hub.callback": subscriber.callback}
            await http.post(b.hub.url, data=wanted)
            await until(lambda: b.hub.subscriptions.count(publisher.topic))
            for number in range(3):
                publisher.body = feed(f"number {number}")
                await http.post(a.hub.url, data={"hub.mode": "publish", "hub.url": publisher.topic})
                await until(lambda number=number: len(subscriber.received) > number)
    rows = rows_of(tmp_path / "run")
    stays = Counter((row["node"], str(row["resource"]).split("/")[0]) for row in rows if "queued_ns" in row)
    for queue in ("intake", "session", "source", "writer", "link", "forwarder"):
        assert stays["a", queue] >= 3, (queue, stays)
    for queue in ("offer", "session", "writer", "delivery", "link", "forwarder"):
        assert stays["b", queue] >= 3, (queue, stays)
    for row in rows:
        if "queued_ns" in row:
            assert row["queued_ns"] <= row["started_ns"] <= row["monotonic_ns"], row  # type: ignore[operator]
            assert row["queue"] >= 0  # type: ignore[operator]
    assert {row["node"] for row in rows if row["step"] == TraceStep.UP and row["resource"] == "link/1"} == {"a", "b"}
    assert all(file.state is FileState.GOOD for file in take_inventory([tmp_path / "run"]).files)


async def test_documents_that_need_a_parser_wait_for_one() -> None:
    told: Told = []
    threads = Threads(1)
    pool = ParserPool(IntakeConfig(max_parses=1), threads, None, KnownPrefixes(), queues=told.append)
    try:
        document = odd([Item("1", "one")])
        await pool.read("http://a.example/1", "application/atom+xml", document)
    finally:
        await pool.close()
        threads.close()
    [stay] = told
    assert isinstance(stay, QueueStay)
    assert (stay.resource, stay.about, stay.end) == ("parser", "http://a.example/1", "ok")


async def test_entries_wait_for_their_session_also_while_it_is_away(tmp_path: Path) -> None:
    told: Told = []
    notes = Notes()
    with Database.open(tmp_path / "exchange.sqlite", EXCHANGE_TABLES) as database:
        log, sessions = SqliteLog(database), SqliteSessions(database)
        exchange = Exchange(log, sessions, lambda: 1000.0, QUICK, queues=told.append)
        await exchange.start()
        exchange.add(notes)
        try:
            await exchange.subscribe(ANA, Interest("all", ITEM), FROM_NOW)
            await exchange.publish(draft(b"0"), "other")
            await until(lambda: notes.taken.get("ana") == [b"0"])
            await exchange.leave(ANA)
            await exchange.publish(draft(b"1"), "other")
            await exchange.come(ANA)
            await until(lambda: notes.taken.get("ana") == [b"0", b"1"])
        finally:
            await exchange.stop()
    changes = [one for one in told if isinstance(one, ConnectionChange)]
    stays = [one for one in told if isinstance(one, QueueStay)]
    assert [one.is_up for one in changes] == [False, True]
    assert {one.resource for one in told} == {session_resource(ANA)}
    assert "ana" not in session_resource(ANA), "who it is may be a secret"
    assert session_resource(SessionKey("psirp", "")) == "session/psirp"
    assert [one.end for one in stays] == ["ok", "ok"]
    assert stays[1].queued_ns < changes[1].at_ns < stays[1].started_ns, "it came while the session was away"


async def test_a_callback_that_is_left_alone_is_down_until_it_answers(tmp_path: Path) -> None:
    told: Told = []
    config = replace(quick_config(), breaker=BreakerConfig(failures=1, cooldown=10.0))
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))  # and does not listen yet
        async with rig(tmp_path, config, queues=told.append) as made:
            host, port = place.getsockname()
            subscribe(made.database, [f"http://{host}:{port}/x"])
            await made.delivery.start()
            await made.finished(await made.publish(b"x"))
            assert [one.is_up for one in told if isinstance(one, ConnectionChange)] == [False]
            async with CallbackServer(listening=place):
                while made.rows("retries"):
                    await made.pass_time(210)
    assert [one.is_up for one in told if isinstance(one, ConnectionChange)] == [False, True]
    assert all(one.resource == "subscriber/1" for one in told if isinstance(one, ConnectionChange))
