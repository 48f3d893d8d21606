"""kill -9 of gateways, rendezvous and forwarders, in a short run, and the judge of it. The long run is `psph crash
gateway`."""

from pathlib import Path

import pytest
from aiohttp import ClientSession

from perf.crash.gateway_driver import GatewayCrashTest
from perf.crash.gateway_process import GATEWAYS, NODES, Parts
from perf.crash.gateway_world import Callback, GatewaySize, GatewayWorld, document

KILLS = 5
SMALL = GatewaySize(topics=2, callbacks=4)
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
    assert report.counts.delivered >= 2 * report.counts.crossed - report.counts.duplicates - SMALL.callbacks


def test_every_kind_of_process_can_be_hit_and_both_domains_publish_and_subscribe(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    assert set(parts.all) == {*GATEWAYS, *NODES} == {"gate-a", "gate-b", "core", "f1", "f2"}
    assert "rendezvous" in (tmp_path / "core.toml").read_text()
    world = GatewayWorld(SMALL, parts.hubs)
    assert set(world.home) == set(GATEWAYS)
    pairs = {(world.home[callback.topic], callback.domain) for callback in world.callbacks.values()}
    assert pairs == {(one, other) for one in GATEWAYS for other in GATEWAYS}


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
    async with GatewayWorld(SMALL, dict.fromkeys(GATEWAYS, "http://127.0.0.1:9/")) as world, ClientSession() as http:
        callback = next(iter(world.callbacks.values()))
        for body in bodies:
            await Judged(world, http).post(callback, body)
        assert dict(world.problems) == found


async def test_the_judge_sees_losses_duplicates_and_other_content_types() -> None:
    async with GatewayWorld(SMALL, dict.fromkeys(GATEWAYS, "http://127.0.0.1:9/")) as world, ClientSession() as http:
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
