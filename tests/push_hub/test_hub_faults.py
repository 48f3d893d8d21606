"""Faults of what others put into a hub, and of its disk at a bad moment: the hub goes on and loses nothing."""

from pathlib import Path

import aiohttp
import pytest

from push_hub.events import PartFailed
from push_hub.model import HubPublication
from push_hub.subscriptions import Change, Subscriptions
from push_hub.verifier import FAULT_PAUSE
from storage import StorageFullError
from tests.push_hub.harness import Publisher, Subscriber, atom, until
from tests.push_hub.running import run_hub
from tests.push_hub.world import Clock, World, whole_hub


class FaultyPolicy:
    faults = 1

    async def refusal(self, topic: str, callback: str) -> str | None:
        if self.faults:
            self.faults -= 1
            raise LookupError("the policy's own table is gone")
        return None


class FaultyListener:
    def publication_accepted(self, publication: HubPublication) -> None:
        raise LookupError(f"nothing for {publication.topic}")

    def subscription_changed(self, topic: str, live: int) -> None:
        raise LookupError(f"nothing for {topic}")


async def test_a_fault_of_the_policy_puts_the_check_off(
    tmp_path: Path, http: aiohttp.ClientSession, subscriber: Subscriber
) -> None:
    clock = Clock()
    async with run_hub(tmp_path, validator=FaultyPolicy(), clock=clock) as hub:
        topic = "http://publisher.example/feed"
        data = {"hub.mode": "subscribe", "hub.topic": topic, "hub.callback": subscriber.url()}
        async with http.post(hub.url, data=data) as answer:
            assert answer.status == 202
        failed = PartFailed("verifier", "LookupError: the policy's own table is gone")
        await until(lambda: failed in hub.events)
        clock.ahead += FAULT_PAUSE
        await hub.verifier.sweep()
        await subscriber.next_check()
        await until(lambda: hub.subscriptions.count(topic) == 1)
        await until(lambda: not hub.verifier.waiting)


async def test_a_fault_of_a_listener_harms_nobody(
    tmp_path: Path, http: aiohttp.ClientSession, publisher: Publisher, subscriber: Subscriber
) -> None:
    events: list[object] = []
    async with whole_hub(tmp_path, observer=events.append) as hub:
        hub.add_listener(FaultyListener())
        world = World(hub, http, publisher, subscriber)
        await world.ask("subscribe")
        assert (await world.publish(atom(1))).body == atom(1)
        assert (await world.publish(atom(2, 1))).body == atom(2, 1)
        failed = PartFailed("listener", f"LookupError: nothing for {world.topic}")
        await until(lambda: events.count(failed) == 3)  # one for the subscription, one for each publication
        assert [one.id for one in hub.delivery.since(world.topic, 0)] == [1, 2]


async def test_a_gone_callback_is_asked_again_when_its_end_could_not_be_written(
    tmp_path: Path,
    http: aiohttp.ClientSession,
    publisher: Publisher,
    subscriber: Subscriber,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with whole_hub(tmp_path) as hub:
        world = World(hub, http, publisher, subscriber)
        await world.ask("subscribe")
        tried: list[int] = []

        async def full(_self: Subscriptions, subscription: int, _reason: str, _now: float) -> Change | None:
            tried.append(subscription)
            raise StorageFullError("no space left")

        subscriber.status = 410
        with monkeypatch.context() as patch:
            patch.setattr(Subscriptions, "remove", full)
            await world.publish(atom(1))
            await until(lambda: bool(tried))
        assert hub.subscriptions.count(world.topic) == 1
        await world.publish(atom(2, 1))
        await until(lambda: hub.subscriptions.count(world.topic) == 0)
