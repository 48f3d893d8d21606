"""The canary: its pulse without a clock, and its way through a whole hub over real sockets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from push_hub.canary import CanaryConfig, Pulse
from push_hub.delivery.events import OutcomesSaved
from push_hub.delivery.signing import signature
from push_hub.events import CanaryArrived, CanaryChanged
from push_hub.hub import Hub, HubConfig
from push_hub.intake.events import PingsStored
from push_hub.model import HubPublication, SignatureMethod
from push_hub.ports import GetFailedError, GetResponse
from serving.outbound.errors import OutboundError
from tests.push_hub.harness import until

DEADLINE = 5.0
CONFIG = CanaryConfig(interval=3600.0, deadline=DEADLINE)


@dataclass
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Watched:
    hub: Hub
    clock: Clock
    http: aiohttp.ClientSession
    events: list[object]

    async def health(self) -> tuple[int, dict[str, Any]]:
        async with self.http.get(f"{self.hub.url}health") as answer:
            assert answer.content_type == "application/json"
            assert answer.headers["Cache-Control"] == "no-store"
            return answer.status, await answer.json()

    async def arrived(self) -> None:
        canary = self.hub.canary
        assert canary is not None
        await until(lambda: canary.seconds_since_arrival == 0.0)

    async def beat(self) -> None:
        assert self.hub.canary is not None
        await self.hub.canary.beat()


class Refuser:
    async def refusal(self, topic: str, callback: str) -> str | None:
        return "nobody may subscribe here"


class Listener:
    def __init__(self) -> None:
        self.heard: list[object] = []

    def publication_accepted(self, publication: HubPublication) -> None:
        self.heard.append(publication)

    def subscription_changed(self, topic: str, live: int) -> None:
        self.heard.append((topic, live))


@asynccontextmanager
async def watched(directory: Path, config: CanaryConfig = CONFIG, **more: Any) -> AsyncIterator[Watched]:
    clock, events = Clock(), list[object]()
    # Without allow_private: the canary must not need it. The validator must not see the canary.
    hub = Hub(
        HubConfig(directory, canary=config, **more),
        clock=clock,
        monotonic=clock,
        observer=events.append,
        validator=Refuser(),
    )
    await hub.start()
    try:
        async with aiohttp.ClientSession() as http:
            yield Watched(hub, clock, http, events)
    finally:
        await hub.stop()


async def test_green_then_deliveries_break_then_red_then_green_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watched(tmp_path) as it:
        listener = Listener()
        it.hub.add_listener(listener)
        await it.arrived()
        status, document = await it.health()
        assert (status, document["status"], document["reasons"]) == (200, "ok", [])
        assert document["checks"]["canary"] == {"ok": True, "text": "arrived 0 seconds ago"}

        def broken(*_: object) -> None:
            raise OutboundError("the test cut the wire")

        with monkeypatch.context() as patch:
            patch.setattr("serving.outbound.client.PostChannel.post", broken)
            it.clock.now += 60
            await it.beat()
            await until(lambda: it.hub.database.read("SELECT 1 FROM retries"))
            assert (await it.health())[0] == 200  # late, but not yet too late
            it.clock.now += DEADLINE + 1
            status, document = await it.health()
            assert (status, document["status"]) == (503, "failing")
            assert document["reasons"] == [
                "the canary has not arrived for 6 seconds (deadline 5): it is in the log, but was not delivered"
            ]
            assert not document["checks"]["canary"]["ok"]
            assert document["checks"]["store"]["ok"]
        it.clock.now += 60
        await it.beat()
        await it.arrived()
        assert (await it.health())[0] == 200
        assert listener.heard == []  # the gateway is not bothered with it
        # Nor is whoever counts what users did: the canary tells of its rounds, and nothing else of it is told.
        assert {type(one) for one in it.events} <= {CanaryArrived, CanaryChanged, PingsStored, OutcomesSaved}


async def test_a_stopped_intake_is_named_as_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(tmp_path) as it:
        await it.arrived()
        monkeypatch.setattr("push_hub.intake.intake.Intake._pump", lambda _self: None)
        it.clock.now += 60
        await it.beat()
        it.clock.now += DEADLINE + 1
        status, document = await it.health()
        assert status == 503
        assert document["reasons"][0].endswith("its ping is stored, but its document was not fetched")


async def test_a_canary_that_is_not_sent_any_more_is_no_good_sign(tmp_path: Path) -> None:
    async with watched(tmp_path) as it:
        await it.arrived()
        it.clock.now += CONFIG.interval + DEADLINE + 1
        status, document = await it.health()
        assert (status, document["reasons"]) == (503, ["the canary was not sent for 3606 seconds"])


async def test_the_timer_sends_and_tells_when_it_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = CanaryConfig(interval=0.05, deadline=0.02)
    events: list[object] = []
    hub = Hub(HubConfig(tmp_path, canary=config), observer=events.append)

    def told() -> list[bool]:
        return [one.healthy for one in events if isinstance(one, CanaryChanged)]

    with monkeypatch.context() as patch:
        patch.setattr("push_hub.intake.intake.Intake._pump", lambda _self: None)
        await hub.start()
        await until(lambda: told() == [False])
    await until(lambda: told()[-1:] == [True])
    await hub.stop()


async def test_a_full_store_and_a_full_queue_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(tmp_path) as it:
        await it.arrived()
        assert it.hub._parts is not None
        await until(lambda: it.hub.delivery.backlog == 0)
        monkeypatch.setattr(type(it.hub.delivery), "backlog", property(lambda _self: 20_000))
        status, document = await it.health()
        assert status == 503
        assert document["reasons"][0].startswith("full: unfinished fan-outs (20000 of 20000")
        monkeypatch.undo()
        assert (await it.health())[0] == 200
        # A real refusal of the engine: the file may not grow any more, and not even a page can be rewritten.
        it.hub._parts.database.write(lambda tx: tx.execute("PRAGMA query_only = ON")).result()
        it.clock.now += 2
        status, document = await it.health()
        assert (status, document["reasons"]) == (503, ["the store refused a write"])
        assert str(tmp_path) not in str(document)
        it.hub._parts.database._writer.execute("PRAGMA query_only = OFF")
        it.clock.now += 2
        assert (await it.health())[0] == 200


async def test_off_means_off_and_health_says_so(tmp_path: Path) -> None:
    async with watched(tmp_path, CanaryConfig(enabled=False)) as it:
        assert it.hub.canary is None
        status, document = await it.health()
        assert (status, document["checks"]["canary"]["text"]) == (200, "switched off")


async def test_an_earlier_canary_leaves_nothing_behind(tmp_path: Path) -> None:
    tables = ("subscriptions", "publications", "topics", "pings", "verifications", "subscription_history", "fanouts")
    async with watched(tmp_path) as it:
        await it.arrived()
        assert it.hub.canary is not None
        first = it.hub.canary.topic
    async with watched(tmp_path) as it:
        await it.arrived()
        assert it.hub._parts is not None
        read = it.hub._parts.database.read
        assert read("SELECT count(*) FROM canaries") == [(1,)]
        for table in tables:
            text = "".join(map(str, read(f"SELECT * FROM {table}")))  # noqa: S608 - own names
            assert first not in text, table


async def test_nobody_else_gets_anything_from_the_canary_s_socket(tmp_path: Path) -> None:
    async with watched(tmp_path) as it:
        await it.arrived()
        canary = it.hub.canary
        assert canary is not None
        base = "http://{}:{}".format(*canary.address)
        for path in ("/", "/guess", f"{canary.topic[len(base) :]}/x"):
            async with it.http.get(base + path) as answer:
                assert answer.status == 404
            async with it.http.post(base + path, data=b"canary 1\n") as answer:
                assert answer.status == 404
        async with it.http.get(canary.callback, params={"hub.topic": "http://other/", "hub.challenge": "x"}) as answer:
            assert answer.status == 404
        # A forged delivery, from somebody who even knows the path, is no sign of life.
        it.clock.now += 60
        await it.beat()
        await it.arrived()
        it.clock.now += 1
        async with it.http.post(canary.callback, data=b"canary 2\n") as answer:
            assert answer.status == 204
        assert canary.seconds_since_arrival == 1.0
        # Nor is an earlier round that comes again, rightly signed.
        for body, age in ((b"canary 1\n", 1.0), (b"canary 2\n", 0.0)):
            signed = {"X-Hub-Signature": signature(canary._secret, SignatureMethod.SHA256, body)}
            async with it.http.post(canary.callback, data=body, headers=signed) as answer:
                assert answer.status == 204
            assert canary.seconds_since_arrival == age


async def test_the_guard_admits_the_canary_s_port_and_no_other(tmp_path: Path) -> None:
    """A stranger may name the canary's address as a callback; all it gets there is 404."""
    async with watched(tmp_path) as it:
        await it.arrived()
        assert it.hub.canary is not None
        assert it.hub._parts is not None
        host, port = it.hub.canary.address
        policy = it.hub._parts.client.policy
        assert policy.refusal(host, port) is None
        assert policy.url_refusal(f"http://{host}:{port}/x") is None
        for other in ((host, port + 1), (host, None), ("127.0.0.2", port), ("::ffff:127.0.0.1", port), ("::1", port)):
            assert "loopback or private" in (policy.refusal(*other) or ""), other
        assert await it.hub.verifier._getter.get(f"http://{host}:{port}/x", timeout=5, max_bytes=99) == GetResponse(
            404, b"404: Not Found"
        )
        with pytest.raises(GetFailedError, match="loopback or private"):
            await it.hub.verifier._getter.get(it.hub.url, timeout=5, max_bytes=99)


def test_the_newest_arrival_settles_all_and_a_late_one_nothing() -> None:
    pulse = Pulse(CanaryConfig(interval=10, deadline=4))
    assert pulse.trouble(0.0) is None
    first = pulse.send(0.0)
    assert pulse.until_deadline(1.0) == 3.0
    assert pulse.trouble(4.0) is None
    assert "only just begun" in (pulse.trouble(4.1) or "")
    assert pulse.until_deadline(4.1) is None
    second = pulse.send(10.0)
    pulse.saw(first, "nobody listens to this")
    pulse.arrived(first, 10.5)
    assert "for 11 seconds" in (pulse.trouble(11.0) or "")
    pulse.arrived(second, 11.5)
    assert pulse.trouble(12.0) is None
    assert pulse.arrived_at == 11.5
    assert "not sent for 15" in (pulse.trouble(25.0) or "")


@pytest.mark.parametrize("wrong", [{"interval": 0}, {"deadline": -1}])
def test_senseless_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        CanaryConfig(**wrong)  # type: ignore[arg-type]
