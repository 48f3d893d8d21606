"""kill -9 of gateways, rendezvous and forwarders, in a short run, and the judge of it. The long run is `psph crash
gateway`."""

import hashlib
from pathlib import Path

import pytest
from aiohttp import ClientSession

from trials.crash import gateway_world
from trials.crash.gateway_driver import GatewayCrashTest
from trials.crash.gateway_process import GATEWAYS, NODES, STOCK, ZONES, GatewayProcesses
from trials.crash.gateway_world import Callback, GatewaySize, GatewayWorld, document

KILLS = 5
SMALL = GatewaySize(topics=2, callbacks=4, distant=1)
NOWHERE = "http://127.0.0.1:9/"
TYPE = "text/plain; charset=utf-8"


def silent(_label: str, _steps: float = 1) -> None:
    pass


async def test_nothing_acknowledged_is_lost_when_processes_are_killed() -> None:
    report = await GatewayCrashTest(KILLS, 3, SMALL, silent).run()
    assert report.passed, (report.problems, report.examples)
    assert report.kills >= KILLS
    assert report.lost == 0
    assert report.most_duplicates_after_a_kill <= report.chunk
    assert report.counts.acknowledged >= 2 * SMALL.topics
    assert report.counts.crossed > 0
    assert report.counts.upstream_acknowledged >= 2 * SMALL.distant
    assert report.counts.bootstrapped >= 2 * SMALL.distant * SMALL.callbacks
    assert report.counts.came >= 2 * SMALL.coming
    assert report.stock_hub["subscribed"] >= 2 * (SMALL.distant + SMALL.coming)
    assert report.stock_hub["delivered"] > 0


def test_every_kind_of_process_can_be_hit_and_both_domains_publish_and_subscribe(tmp_path: Path) -> None:
    parts = GatewayProcesses(tmp_path)
    assert set(parts.all) == {*GATEWAYS, *NODES, STOCK} == {"gate-a", "gate-b", "core", "f1", "f2", "stock"}
    assert "rendezvous" in (tmp_path / "core.toml").read_text()
    world = GatewayWorld(SMALL, parts.hubs)
    assert set(world.home) == set(GATEWAYS)
    pairs = {(world.home[callback.topic], callback.domain) for callback in world.callbacks.values()}
    assert pairs == {(one, other) for one in GATEWAYS for other in GATEWAYS}


async def test_some_topics_are_to_be_had_only_through_a_zone_s_manager_and_a_hub_that_is_not_ours(
    tmp_path: Path,
) -> None:
    parts = GatewayProcesses(tmp_path)
    async with GatewayWorld(SMALL, parts.hubs, parts.stock_hub) as world, ClientSession() as http:
        distant = [callback for callback in world.callbacks.values() if callback.topic in world.zone]
        for callback in distant:
            zone = world.zone[callback.topic]
            assert f".{zone}:" in world.topic(callback.topic)
            assert f'zones = ["{zone}"]' not in (tmp_path / f"{callback.domain}.toml").read_text()
            assert world.publish_at(callback.topic) == parts.stock_hub
            url = world.topic(callback.topic).replace(f"news.{zone}", "127.0.0.1")
            async with http.get(url) as answer:
                assert f'<{parts.stock_hub}>; rel="hub"' in answer.headers["Link"]
        assert {world.zone[callback.topic] for callback in distant} == set(ZONES.values())
        assert {callback.coming for callback in distant} == {True, False}


class Judged:
    """A world without gateways: the test does what they would do."""

    def __init__(self, world: GatewayWorld, http: ClientSession) -> None:
        self.world = world
        self._http = http

    async def post(self, callback: Callback, body: bytes, content_type: str = TYPE) -> None:
        url = self.world.callback_url(callback)
        async with self._http.post(url, data=body, headers={"Content-Type": content_type}) as answer:
            assert answer.status == 204


@pytest.mark.parametrize(
    ("bodies", "found"),
    [
        ([document(0, 1, 900), document(0, 3, 900)], {}),
        ([document(0, 2, 900), document(0, 1, 900)], {"late document": 1}),
        ([document(1, 1, 900)], {"wrong document": 1}),
        ([document(0, 1, 900)[:-1]], {"changed document": 1}),
        ([b""], {"wrong document": 1}),
    ],
)
async def test_the_judge_sees_what_is_wrong(bodies: list[bytes], found: dict[str, int]) -> None:
    async with GatewayWorld(SMALL, dict.fromkeys(GATEWAYS, NOWHERE)) as world, ClientSession() as http:
        callback = next(iter(world.callbacks.values()))
        for body in bodies:
            await Judged(world, http).post(callback, body)
        assert dict(world.problems) == found


async def test_the_judge_sees_losses_duplicates_and_other_content_types() -> None:
    async with GatewayWorld(SMALL, dict.fromkeys(GATEWAYS, NOWHERE)) as world, ClientSession() as http:
        judged = Judged(world, http)
        first, second, *_ = world.callbacks.values()
        assert first.topic == second.topic == 0
        world.promised[0] = 2
        await judged.post(first, document(0, 2, 900))
        behind = world.behind()
        assert first not in behind
        assert second in behind
        await judged.post(first, document(0, 2, 900))
        world.killed()
        for _ in range(2):
            await judged.post(first, document(0, 2, 900))
        assert (world.counts.duplicates, world.most_duplicates) == (3, 2)
        assert not world.problems
        await judged.post(second, document(0, 2, 900), "text/html")
        assert dict(world.problems) == {"changed content type": 1}


def said(topic: int, number: int) -> str:
    return hashlib.sha256(document(topic, number, SMALL.document_bytes)).hexdigest()


async def test_states_that_a_gateway_took_from_the_stock_hub_and_did_not_bring_are_counted() -> None:
    async with GatewayWorld(SMALL, dict.fromkeys(GATEWAYS, NOWHERE), NOWHERE) as world, ClientSession() as http:
        callbacks = [one for one in world.callbacks.values() if one.topic in world.zone and not one.coming]
        topic = callbacks[0].topic
        world.numbers[topic] = world.promised[topic] = 3
        first, *others = [one for one in callbacks if one.topic == topic]
        for callback in (first, *others):
            for number in (1, 3) if callback is first else (1, 2, 3):
                await Judged(world, http).post(callback, document(topic, number, SMALL.document_bytes))
        assert world.counts.bootstrapped == 3 * len(others) + 2
        assert world.counts.crossed == 0
        assert not world.behind()
        world.count_passed_over({world.topic(topic): {said(topic, 1), said(topic, 3)}})
        assert world.counts.passed_over == 0
        world.count_passed_over({world.topic(topic): {said(topic, 2)}})
        assert world.counts.passed_over == 1
        assert not world.problems


async def test_the_judge_sees_subscriptions_that_are_taken_back_or_never_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with GatewayWorld(SMALL, dict.fromkeys(GATEWAYS, NOWHERE), NOWHERE) as world, ClientSession() as http:
        visitor = next(one for one in world.callbacks.values() if one.coming)
        world.promised[visitor.topic] = world.numbers[visitor.topic] = 4
        assert visitor not in world.behind(), "it has not come yet"

        async def hub(callback: Callback, mode: str) -> bool:
            """Says yes, and asks the callback as told."""
            for query in script.pop(0):
                async with http.get(world.callback_url(callback), params=query) as answer:
                    assert answer.status in (200, 204)
            return True

        check = {"hub.mode": "subscribe", "hub.topic": "t", "hub.challenge": "abc", "hub.lease_seconds": "9"}
        denial = {"hub.mode": "denied", "hub.topic": "t", "hub.reason": "not now"}
        script = [[denial], [check]]
        monkeypatch.setattr(world, "_ask", hub)
        monkeypatch.setattr(gateway_world, "ASK_AGAIN", 0.0)
        await world.come(visitor)
        assert (world.counts.denied, world.counts.came) == (1, 1)
        assert visitor not in world.behind(), "what is older than the subscription is not owed"
        world.promised[visitor.topic] = 5
        assert visitor in world.behind()
        assert not world.problems
        script = [[denial]]
        await hub(visitor, "")
        assert dict(world.problems) == {"subscription taken back": 1}
        script = [[]]
        monkeypatch.setattr(gateway_world, "ANSWER_PATIENCE", 0.0)
        await world.go(visitor)
        assert world.problems["acknowledged, not answered"] == 1
