"""Metrics and health tell the truth, and the documentation names all of them."""

import asyncio
import json
import re
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from prometheus_client.parser import text_string_to_metric_families

from gateway.admin.config import AdminConfig
from gateway.gateway import Gateway, gateway_config
from gateway.telemetry.metrics import names
from identifiers import Topic
from psirp_stack.node.config import check
from push_hub.canary import PORT, CanaryConfig
from push_hub.hub import HubConfig
from serving.port import Port
from tests.gateway.admin.admin_world import AdminWorld, admin_world
from tests.waiting import until

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs" / "metrics.md"
NAME = re.compile(r"`((?:psph|process)_[a-z_]+)`")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[AdminWorld]:
    async with admin_world(tmp_path) as world:
        yield world


async def samples(world: AdminWorld) -> dict[tuple[str, str], float]:
    """Values by name and label values."""
    found = {}
    for family in text_string_to_metric_families(await world.get("/metrics")):
        for sample in family.samples:
            found[sample.name, " ".join(sample.labels.values())] = sample.value
    return found


async def test_the_document_lists_exactly_the_exported_names(world: AdminWorld) -> None:
    documented = set(NAME.findall(DOCUMENT.read_text()))
    assert documented == names(world.admin.telemetry, await world.admin.gauges())


async def test_numbers_of_both_domains_follow_what_happens(world: AdminWorld) -> None:
    await world.subscribe()
    for _ in range(3):
        await world.publish()
    await until(lambda: world.admin.telemetry.delivered.total == 3)
    seen = await samples(world)
    assert seen["psph_hub_publications_total", "network"] == 3
    assert seen["psph_hub_publications_total", "here"] == 0
    assert seen["psph_hub_deliveries_total", "delivered"] == 3
    assert seen["psph_hub_delivery_seconds_count", ""] == 3
    assert seen["psph_psirp_arrived_total", ""] == 3
    assert seen["psph_psirp_crossing_seconds_count", ""] == 3
    assert seen["psph_hub_subscriptions", ""] == 1
    assert seen["psph_hub_verifications_total", "confirmed"] == 1
    assert seen["psph_psirp_nodes", ""] == 3
    assert seen["psph_psirp_links", ""] == 2
    assert seen["psph_psirp_items", "subscribed"] == 1
    assert seen["psph_psirp_node_up", ""] == 1
    assert seen["psph_health", "rendezvous"] == 1
    assert seen["psph_telemetry_faults_total", ""] == 0
    there = world.b.telemetry
    assert there is not None
    assert there.published.total == 3
    assert there.export.histogram.count == 3
    assert there.intake.histogram.count == 2, "when the first ping came, domain B did not know that anybody wants it"


async def test_matches_are_counted_where_the_rendezvous_is_elsewhere(world: AdminWorld) -> None:
    async def counted(matched: int, waiting: int) -> None:
        async def is_so() -> bool:
            seen = await samples(world)
            return (seen["psph_psirp_wanted_items", "yes"], seen["psph_psirp_wanted_items", "no"]) == (matched, waiting)

        await until(is_so)
        assert ("psph_psirp_matches", "") not in await samples(world), "only the topology manager knows all of them"
        network = (await world.get("/api/snapshot"))["network"]
        assert network["name"] == "n2"
        assert network["name"] not in network["topology"] + network["rendezvous"]

    await counted(0, 0)
    await world.subscribe()
    await counted(0, 1)
    await world.publish()
    await counted(1, 0)
    item = world.b.config.naming.of_topic(Topic.parse(world.blog.topic))
    await world.b.psirp.withdraw(item)
    await counted(0, 1)


async def test_ready_means_that_everything_is_there(world: AdminWorld) -> None:
    text = await world.get("/readyz")
    assert all(line.startswith("ok") for line in text.splitlines())
    assert await world.get("/healthz") == "ok  store: writable\nok  gateway store: writable\n"


async def fresh(world: AdminWorld, path: str) -> tuple[int, str]:
    """Ask without the report that is shared for a second."""
    world.admin.health._at = None
    async with world.http.get(world.admin.url.rstrip("/") + path) as answer:
        return answer.status, await answer.text()


async def test_a_rendezvous_that_is_gone_is_not_ready_and_still_alive(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.protocols.psirp.protocol.DEADLINE", 0.5)
    await world.network.nodes["n1"].close()
    status, text = await fresh(world, "/readyz")
    assert status == 503
    assert "BAD rendezvous" in text
    assert (await fresh(world, "/healthz"))[0] == 200


async def test_a_node_that_is_gone_is_not_ready(world: AdminWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.protocols.psirp.protocol.DEADLINE", 0.5)
    monkeypatch.setattr("gateway.admin.snapshot.NODE_DEADLINE", 0.5)
    await world.network.nodes["n2"].close()
    assert (await fresh(world, "/readyz"))[0] == 503
    assert (await samples(world))["psph_psirp_node_up", ""] == 0
    assert "node" in (await world.get("/api/snapshot"))["network"]["trouble"]


@pytest.mark.parametrize(("store", "check"), [("hub/hub.sqlite", "store"), ("gateway.sqlite", "gateway store")])
async def test_a_store_that_takes_no_write_is_not_alive(
    world: AdminWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, check: str
) -> None:
    monkeypatch.setattr("gateway.admin.health.STORE_DEADLINE", 0.3)
    # Somebody else holds the write lock, as a backup that hangs would.
    blocker = sqlite3.connect(tmp_path / "a" / store, isolation_level=None)
    try:
        blocker.execute("BEGIN IMMEDIATE")
        world.a.hub._running.health._store = None
        object.__setattr__(world.a.hub._running.health._config, "store_deadline", 0.3)
        for path in ("/healthz", "/readyz"):
            status, text = await fresh(world, path)
            assert status == 503
            assert f"BAD {check}:" in text
        blocker.execute("ROLLBACK")
    finally:
        blocker.close()


async def test_a_full_queue_is_not_ready_and_still_alive(world: AdminWorld) -> None:
    go_on = asyncio.Event()

    async def hang(_request: web.Request) -> web.Response:
        await go_on.wait()
        return web.Response(text="late")

    app = web.Application()
    app.router.add_get("/{name}", hang)
    async with TestServer(app) as server:
        object.__setattr__(world.a.hub._config.intake, "max_waiting_topics", 2)
        for number in range(100):
            topic = str(server.make_url(f"/{number}"))
            # Pings of what nobody wants do not wait in this queue.
            wish = {"hub.mode": "subscribe", "hub.topic": topic, "hub.callback": world.reader.callback}
            async with world.http.post(world.a.hub.url, data=wish) as answer:
                assert answer.status == 202
            await until(lambda topic=topic: world.a.hub.subscriptions.count(topic))
            form = {"hub.mode": "publish", "hub.url": topic}
            async with world.http.post(world.a.hub.url, data=form) as answer:
                if answer.status == 503:
                    break
            # What is under way does not wait any more.
            await until(lambda: not world.a.hub._running.intake._reserved)
        else:
            pytest.fail("nothing was refused")
        status, text = await fresh(world, "/readyz")
        assert status == 503
        assert "BAD queues: full: topics to fetch" in text
        assert (await fresh(world, "/healthz"))[0] == 200
        go_on.set()
        await until(lambda: not world.a.hub._running.intake.waiting)
        assert (await fresh(world, "/readyz"))[0] == 200


def test_the_grafana_dashboard_asks_only_for_metrics_that_exist() -> None:
    document = json.loads((ROOT / "deploy" / "grafana" / "psph.json").read_text())
    asked = " ".join(target["expr"] for panel in document["panels"] for target in panel.get("targets", []))
    used = {name.removesuffix("_bucket") for name in re.findall(r"\b(?:psph|process)_[a-z_]+", asked)}
    documented = set(NAME.findall(DOCUMENT.read_text()))
    assert used <= documented
    assert len(used) > 20
    # Panels do not lie on each other.
    places = [panel["gridPos"] for panel in document["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells))


async def test_a_canary_that_is_refused_turns_it_red_with_the_reason_and_green_again(tmp_path: Path) -> None:
    """Nothing listens at its callback for a while: real refusals, on the real way of a delivery."""
    canary = CanaryConfig(interval=0.2, deadline=0.4)
    hub = HubConfig(tmp_path / "hub", canary=canary)
    node = check({"name": "a", "roles": ["rendezvous", "topology"], "data": str(tmp_path / "node")})
    gateway = Gateway(gateway_config(tmp_path, hub, node=node, admin=AdminConfig()))
    await gateway.start()
    try:
        assert gateway.admin is not None
        admin, sent = gateway.admin, gateway.hub.canary
        assert sent is not None
        async with ClientSession() as http:

            async def ask(path: str) -> tuple[int, str]:
                admin.health._at = None
                async with http.get(admin.url + path) as answer:
                    return answer.status, await answer.text()

            async def until_it_says(status: int, line: str) -> str:
                said = ""

                async def says_so() -> bool:
                    nonlocal said
                    found, said = await ask("readyz")
                    return found == status and line in said

                await until(says_so)
                return said

            await until_it_says(200, "ok  canary: arrived")
            await sent._port.stop()
            text = await until_it_says(503, "BAD canary: the canary has not arrived for")
            assert "(deadline 0.4): " in text
            assert text.count("BAD") == 1, "everything else is well, and said to be"
            assert (await ask("healthz"))[0] == 200, "a restart would not help"
            assert 'psph_health{check="canary"} 0.0' in (await ask("metrics"))[1]
            sent._port = Port(replace(PORT, port=sent.address[1]))
            await sent._listen()
            await until_it_says(200, "ok  canary: arrived")
            assert 'psph_health{check="canary"} 1.0' in (await ask("metrics"))[1]
    finally:
        await gateway.stop()
