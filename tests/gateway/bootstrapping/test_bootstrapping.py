"""A client of domain A subscribes to a topic of domain B, whose hub is somebody else's; every step of it crosses."""

import asyncio
import hashlib
import hmac
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.bootstrapping import BootstrappingConfig, Unmanaged, upstream
from gateway.bootstrapping.events import TopicDecided, UpstreamDropped, ZoneAnnounced
from gateway.bootstrapping.messages import RequestMode, TopicRequest, TopicRequests, encode, requests_item
from gateway.gateway import DATABASE_NAME, Gateway, GatewayConfig, gateway_config
from identifiers import DEFAULT_NAMING, HashName, Naming, Scheme, Topic, zone_of
from psirp_stack.emulation.network import EmulatedNetwork, socket_of
from psirp_stack.emulation.plan import plan
from psirp_stack.node.api import Client
from psirp_stack.node.config import TimesFile
from push_hub.canary import CanaryConfig
from push_hub.hub import HubConfig
from push_hub.protocol.leases import LeasePolicy
from push_hub.verifier import IntentVerifierConfig
from storage import Database
from tests.gateway.bootstrapping.distant import ATOM, HOST, DistantDomain, Reader, feed
from tests.waiting import until

ZONE = "feedspsirp.com"
QUICK = BootstrappingConfig(tick=0.02, answer_timeout=8.0, upstream_confirm=2.0)
SHORT_LEASES = IntentVerifierConfig(leases=LeasePolicy(1, 3600, 3600), sweep_every=0.02)


class World:
    def __init__(self, network: EmulatedNetwork, data: Path) -> None:
        self.network = network
        self.data = data
        self.events: list[object] = []
        self.skew = 0.0
        """Seconds by which the gateways' clock is ahead."""
        self._ports: dict[str, int] = {}
        """Where each hub listened first; it is there again after a restart, as its callbacks are known elsewhere."""

    def clock(self) -> float:
        # Asked from the thread that writes too.
        return time.monotonic() + 1_700_000_000.0 + self.skew

    def config(self, node: str, name: str, bootstrapping: BootstrappingConfig, naming: Naming) -> GatewayConfig:
        hub = HubConfig(
            self.data / name / "hub",
            port=self._ports.get(name, 0),
            allow_private=True,
            canary=CanaryConfig(enabled=False),
            hosts=((HOST, "127.0.0.1"), ("www.unmanaged.org", "127.0.0.1")),
            verifier=SHORT_LEASES,
        )
        socket = socket_of(self.data / "net", node)
        return gateway_config(
            self.data / name, hub, attach=socket, naming=naming, bootstrapping=bootstrapping, name=name
        )

    @asynccontextmanager
    async def gateway(
        self,
        node: str,
        name: str,
        bootstrapping: BootstrappingConfig = QUICK,
        naming: Naming = DEFAULT_NAMING,
    ) -> AsyncIterator[Gateway]:
        gateway = Gateway(self.config(node, name, bootstrapping, naming), observer=self.events.append, clock=self.clock)
        await gateway.start()
        self._ports[name] = int(gateway.hub.url.rstrip("/").rpartition(":")[2])
        try:
            yield gateway
        finally:
            await gateway.stop()

    @asynccontextmanager
    async def manager(
        self, config: BootstrappingConfig = QUICK, naming: Naming = DEFAULT_NAMING
    ) -> AsyncIterator[Gateway]:
        """Domain B's gateway, and known to be the zone's manager."""
        before = self.happened(ZoneAnnounced)
        async with self.gateway("n0", "b", replace(config, zones=(ZONE,)), naming) as gateway:
            await until(lambda: self.happened(ZoneAnnounced) > before)
            yield gateway

    def happened(self, kind: type) -> int:
        return sum(isinstance(event, kind) for event in self.events)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    network_plan = plan({"generate": {"kind": "line", "nodes": 4}, "roles": {"rendezvous": "n1"}}, tmp_path)
    (tmp_path / "net").mkdir()
    network = await EmulatedNetwork.start(network_plan, tmp_path / "net", TimesFile(hello=0.1))
    await network.settled()
    yield World(network, tmp_path)
    await network.close()


async def subscribed(reader: Reader, gateway: Gateway, topic: str) -> None:
    verified = len(reader.inbox.verified)
    assert await reader.ask(gateway.hub.url, topic) == 202
    await until(lambda: len(reader.inbox.verified) > verified or reader.inbox.denied)
    assert not reader.inbox.denied
    await until(lambda: gateway.hub.subscriptions.count(topic) == 1)
    item = gateway.config.naming.of_topic(Topic.parse(topic))
    await until(lambda: gateway.psirp.follows(item))


async def denied(reader: Reader, gateway: Gateway, topic: str) -> str:
    assert await reader.ask(gateway.hub.url, topic) == 202
    await until(lambda: reader.inbox.denied or reader.inbox.verified)
    assert reader.inbox.verified == [], "nobody is asked to confirm what is denied"
    return reader.inbox.denied[-1]


def bodies(reader: Reader) -> list[bytes]:
    return [one.body for one in reader.inbox.received]


async def test_a_recursive_subscription_brings_the_distant_hub_s_publications_back_byte_for_byte(world: World) -> None:
    async with DistantDomain() as distant, Reader() as reader, world.manager() as b, world.gateway("n3", "a") as a:
        await subscribed(reader, a, distant.topic)
        (upstream,) = distant.subscribed.values()
        assert upstream.callback.startswith(b.hub.url), "B is the callback"
        assert len(upstream.secret or "") >= 32
        await until(lambda: bodies(reader) == [feed("first")])
        # As a hub would push it: odd spaces and a comment must survive.
        second = feed("second", "first").replace(b"<entry>", b"\n  <!-- odd -->\t<entry>", 1)
        assert await distant.push(second) == [202]
        await until(lambda: len(reader.inbox.received) == 2)
        assert bodies(reader)[1] == second
        assert reader.inbox.received[1].content_type == ATOM
        assert f'<{distant.topic}>; rel="self"' in reader.inbox.received[1].link
        assert f"<{a.hub.url}>" in reader.inbox.received[1].link, "A is the subscriber's hub"
        # The same again is not delivered again, the next one is.
        await distant.push(second)
        third = feed("third")
        await distant.push(third)
        await until(lambda: len(reader.inbox.received) == 3)
        assert bodies(reader)[2] == third


async def test_a_second_gateway_wants_the_same_topic_and_its_hub_is_asked_once(world: World) -> None:
    async with (
        DistantDomain() as distant,
        Reader() as one,
        Reader() as other,
        world.manager(),
        world.gateway("n3", "a") as a,
        world.gateway("n2", "c") as c,
    ):
        await subscribed(one, a, distant.topic)
        await subscribed(other, c, distant.topic)
        await distant.push(feed("news"))
        await until(lambda: feed("news") in bodies(one) and feed("news") in bodies(other))
        assert len(distant.asked) == 1
        # One of them leaves: the other goes on.
        assert await one.ask(a.hub.url, distant.topic, "unsubscribe") == 202
        await until(lambda: not a.bootstrapping.status().asked)
        await distant.push(feed("more"))
        await until(lambda: feed("more") in bodies(other))
        assert feed("more") not in bodies(one)
        assert distant.unsubscribed == 0


async def test_the_last_unsubscription_travels_to_the_distant_hub(world: World) -> None:
    async with DistantDomain() as distant, Reader() as reader, world.manager() as b, world.gateway("n3", "a") as a:
        await subscribed(reader, a, distant.topic)
        assert await reader.ask(a.hub.url, distant.topic, "unsubscribe") == 202
        await until(lambda: distant.unsubscribed == 1)
        assert not distant.subscribed
        # Nothing is left of it on either side.
        await until(lambda: not b.bootstrapping.status().topics)
        assert a.bootstrapping.requester is not None
        await until(lambda: not a.bootstrapping.requester.request_table.zones)
        # And it can all begin again, with a new secret.
        await subscribed(reader, a, distant.topic)
        await distant.push(feed("again"))
        await until(lambda: feed("again") in bodies(reader))


async def test_a_lease_that_ends_in_domain_a_ends_the_subscription_in_domain_b(world: World) -> None:
    async with DistantDomain() as distant, Reader() as reader, world.manager(), world.gateway("n3", "a") as a:
        assert await reader.ask(a.hub.url, distant.topic, **{"hub.lease_seconds": "600"}) == 202
        item = DEFAULT_NAMING.of_topic(Topic.parse(distant.topic))
        await until(lambda: distant.subscribed and a.psirp.follows(item))
        world.skew += 700.0
        await until(lambda: distant.unsubscribed == 1)


async def test_requests_are_renewed_and_those_of_a_gateway_that_is_gone_run_out(world: World) -> None:
    config = replace(QUICK, lease=1000.0)
    async with DistantDomain() as distant, Reader() as reader, world.manager(config) as b:
        async with world.gateway("n3", "a", config) as a:
            await subscribed(reader, a, distant.topic)
            assert b.bootstrapping.manager is not None
            request_table = b.bootstrapping.manager.request_table
            for _ in range(4):
                (before,) = request_table.held
                world.skew += 600.0
                await until(lambda before=before: request_table.held[0].until > before.until)  # type: ignore[misc]
            assert distant.unsubscribed == 0
            await distant.push(feed("after 2400 seconds"))
            await until(lambda: feed("after 2400 seconds") in bodies(reader))
        world.skew += 900.0
        await asyncio.sleep(0)
        assert request_table.held, "its lease still runs"
        world.skew += 200.0
        await until(lambda: distant.unsubscribed == 1)


async def test_the_upstream_lease_is_renewed_before_it_ends(world: World) -> None:
    async with DistantDomain() as distant, Reader() as reader, world.manager(), world.gateway("n3", "a") as a:
        distant.rules.lease = 300
        await subscribed(reader, a, distant.topic)
        before = len(distant.asked)
        world.skew += 250.0
        await until(lambda: len(distant.asked) > before)
        assert distant.asked[-1]["hub.mode"] == "subscribe"
        assert distant.asked[-1]["hub.callback"] != distant.asked[0]["hub.callback"]
        world.skew += 100.0  # the first lease is over now
        await until(lambda: len(distant.subscribed) == 2)
        await distant.push(feed("renewed"))
        await until(lambda: feed("renewed") in bodies(reader))
        assert bodies(reader).count(feed("renewed")) == 1


async def test_what_the_hub_owed_to_the_callback_of_the_last_lease_is_not_missed(world: World) -> None:
    """It could not push while B was not to be reached, B renewed under another callback, and the old one is gone."""
    async with DistantDomain() as distant, Reader() as reader, world.manager(), world.gateway("n3", "a") as a:
        distant.rules.lease = 300
        await subscribed(reader, a, distant.topic)
        await until(lambda: bodies(reader) == [feed("first")])
        distant.body = feed("never pushed")
        world.skew += 250.0
        await until(lambda: len(distant.subscribed) == 2)
        await until(lambda: bodies(reader) == [feed("first"), feed("never pushed")])


async def test_what_was_published_while_no_lease_ran_is_not_missed(world: World) -> None:
    async with DistantDomain() as distant, Reader() as reader, world.gateway("n3", "a") as a:
        distant.rules.lease = 300
        async with world.manager():
            await subscribed(reader, a, distant.topic)
            await until(lambda: bodies(reader) == [feed("first")])
        world.skew += 400.0
        distant.subscribed.clear()
        distant.body = feed("pushed to nobody")
        async with world.manager():
            await until(lambda: distant.subscribed)
            await until(lambda: bodies(reader) == [feed("first"), feed("pushed to nobody")])


async def test_what_is_pushed_late_does_not_come_after_what_a_look_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "LOOK_INSTEAD", 600.0)  # however slow this machine is
    async with DistantDomain() as distant, Reader() as reader, world.manager(), world.gateway("n3", "a") as a:
        distant.rules.lease = 300
        await subscribed(reader, a, distant.topic)
        await until(lambda: bodies(reader) == [feed("first")])
        distant.body = feed("third")
        world.skew += 250.0
        await until(lambda: len(distant.subscribed) == 2 and bodies(reader)[-1] == feed("third"))
        one = list(distant.subscribed.values())[-1]
        body = feed("second")
        signature = hmac.new((one.secret or "").encode(), body, hashlib.sha256).hexdigest()
        headers = {"Content-Type": ATOM, "X-Hub-Signature": f"sha256={signature}"}
        async with reader.http.post(one.callback, data=body, headers=headers) as answer:
            assert answer.status == 202
        await distant.push(feed("fourth"))
        await until(lambda: bodies(reader)[-1] == feed("fourth"))
        assert bodies(reader) == [feed("first"), feed("third"), feed("fourth")]


# What is refused.


async def test_a_zone_that_nobody_manages_is_denied_at_once_and_in_words(world: World) -> None:
    async with DistantDomain() as distant, Reader() as reader, world.gateway("n3", "a") as a:
        began = asyncio.get_running_loop().time()
        reason = await denied(reader, a, distant.topic)
        assert reason == f"nobody in the network manages the zone {ZONE}, so nobody would bring this topic"
        assert asyncio.get_running_loop().time() - began < QUICK.answer_timeout
        assert a.hub.subscriptions.count(distant.topic) == 0
        assert a.bootstrapping.status().asked == (), "no work was made for the network"
        assert dict(a.bootstrapping.status().counters)["subscriptions_refused"] == 1


async def test_an_unmanaged_zone_may_be_accepted_and_served_when_a_manager_comes(world: World) -> None:
    accepting = replace(QUICK, unmanaged=Unmanaged.ACCEPT)
    async with DistantDomain() as distant, Reader() as reader, world.gateway("n3", "a", accepting) as a:
        await subscribed(reader, a, distant.topic)
        assert not distant.asked
        async with world.manager():
            await until(lambda: distant.subscribed)
            await distant.push(feed("at last"))
            await until(lambda: feed("at last") in bodies(reader))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Naming(Scheme.ZONE), "'zone/sha1'"),
        (Naming(hash_name=HashName.SHA256), "'fqdn-path/sha256'"),
        (Naming(Scheme.ZONE, HashName.SHA256), "'zone/sha256'"),
    ],
)
async def test_a_manager_that_names_topics_otherwise_is_told_of(world: World, other: Naming, words: str) -> None:
    async with (
        DistantDomain() as distant,
        Reader() as reader,
        world.manager(naming=other) as b,
        world.gateway("n3", "a") as a,
    ):
        reason = await denied(reader, a, distant.topic)
        assert f"{b.hub.url} manages {ZONE}" in reason or f"the zone {ZONE} is managed" in reason
        assert "we name topics by 'fqdn-path/sha1'" in reason
        assert words in reason
        assert not distant.asked


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"names_hub": False}, "names no hub"),
        ({"deny": "members only"}, "denied: members only"),
        ({"status": 403}, "answered 403"),
    ],
)
async def test_what_the_distant_hub_says_reaches_the_subscriber(
    world: World, change: dict[str, object], words: str
) -> None:
    async with DistantDomain() as distant, Reader() as reader, world.manager(), world.gateway("n3", "a") as a:
        distant.rules = replace(distant.rules, **change)  # type: ignore[arg-type]
        reason = await denied(reader, a, distant.topic)
        assert reason.startswith(f"the manager of {ZONE} says: ")
        assert words in reason
        # Another try gets another chance.
        distant.rules = type(distant.rules)()
        reader.inbox.denied.clear()
        await subscribed(reader, a, distant.topic)
        await distant.push(feed("in the end"))
        await until(lambda: feed("in the end") in bodies(reader))


async def test_a_subscription_that_the_distant_hub_ends_later_is_denied_to_the_subscriber(world: World) -> None:
    async with DistantDomain() as distant, Reader() as reader, world.manager(), world.gateway("n3", "a") as a:
        await subscribed(reader, a, distant.topic)
        await until(lambda: bodies(reader))
        ((topic, callback),) = distant.subscribed
        assert await distant.deny(topic, callback, "closed for good") == 200
        await until(lambda: reader.inbox.denied)
        assert "closed for good" in reader.inbox.denied[0]
        await until(lambda: a.hub.subscriptions.count(distant.topic) == 0)


async def explained(world: World, topic: str) -> tuple[int, str]:
    """What an operator of domain A is told by `psph explain`."""
    socket = str(socket_of(world.data / "net", "n3"))
    command = [sys.executable, "-m", "gateway.cli.main", "explain", topic, "--socket", socket]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_explain_says_who_manages_the_zone_of_a_topic_that_does_not_arrive(world: World) -> None:
    topic = f"http://{HOST}/feed"
    code, text = await explained(world, topic)
    assert code == 1
    assert f"nobody in the network manages the zone {ZONE}" in text
    async with world.manager() as b:
        assert f"the zone {ZONE} is managed by {b.hub.url}" in (await explained(world, topic))[1]
    async with world.manager(naming=Naming(Scheme.ZONE)) as b:
        assert f"{b.hub.url} manages {ZONE}, but we name topics by" in (await explained(world, topic))[1]


async def test_explain_does_not_miss_a_manager_of_what_is_published(world: World) -> None:
    """A topic that a gateway publishes needs none: nobody is told in one breath that it matches and cannot come."""
    topic = f"http://{HOST}/feed"
    item = Naming().of_topic(Topic.parse(topic))
    came = asyncio.Event()

    async def heard(_: object) -> None:
        came.set()

    async with await Client.attach(socket_of(world.data / "net", "n0")) as client:
        await client.publish(item.sid, item.rid, b"news")
        code, text = await explained(world, topic)
        assert code == 1
        assert "no subscriber; 'n0' could publish" in text
        assert f"nobody manages the zone {ZONE}, and nobody needs to: the topic is published in the network" in text
        async with await Client.attach(socket_of(world.data / "net", "n3")) as reader:
            await reader.subscribe(item.sid, item.rid, heard)
            await came.wait()
            code, text = await explained(world, topic)
    assert code == 0
    assert "  matched: 'n0' for 'n3'\n" in text, text
    assert "matched: matched" not in text and "nobody" not in text


async def test_a_topic_of_another_zone_is_not_asked_of_this_manager(world: World) -> None:
    async with DistantDomain() as distant, Reader() as reader, world.manager(), world.gateway("n3", "a") as a:
        reason = await denied(reader, a, f"http://www.unmanaged.org:{distant.port}/feed")
        assert "nobody in the network manages the zone unmanaged.org" in reason


async def test_what_is_not_signed_with_the_subscription_s_secret_is_dropped_and_counted(world: World) -> None:
    async with DistantDomain() as distant, Reader() as reader, world.manager() as b, world.gateway("n3", "a") as a:
        await subscribed(reader, a, distant.topic)
        await until(lambda: bodies(reader) == [feed("first")])
        assert await distant.push(feed("forged"), secret="guessed") == [202], "who guesses learns nothing"
        (one,) = distant.subscribed.values()
        async with reader.http.post(one.callback, data=feed("unsigned"), headers={"Content-Type": ATOM}) as answer:
            assert answer.status == 202
        assert dict(b.bootstrapping.status().counters)["deliveries_badly_signed"] == 2
        assert world.happened(UpstreamDropped) == 2
        await distant.push(feed("honest"))
        await until(lambda: feed("honest") in bodies(reader))
        assert bodies(reader) == [feed("first"), feed("honest")]


async def test_every_topic_has_a_secret_and_a_callback_of_its_own(world: World) -> None:
    async with DistantDomain() as distant, Reader() as reader, world.manager(), world.gateway("n3", "a") as a:
        other = distant.topic.replace("/feed", "/other")
        await subscribed(reader, a, distant.topic)
        await subscribed(reader, a, other)
        await until(lambda: len(distant.subscribed) == 2)
        assert len({one.secret for one in distant.subscribed.values()}) == 2
        assert len({one.callback for one in distant.subscribed.values()}) == 2


# What survives what.


async def test_either_gateway_may_be_away_and_the_subscription_is_still_there(world: World) -> None:
    async with DistantDomain() as distant, Reader() as reader:
        async with world.manager():
            async with world.gateway("n3", "a") as a:
                await subscribed(reader, a, distant.topic)
            decided = world.happened(TopicDecided)
            async with world.gateway("n3", "a"):
                await distant.push(feed("requester was away"))
                await until(lambda: feed("requester was away") in bodies(reader))
        assert decided == world.happened(TopicDecided) == 1, "what is decided is not decided again"
        async with world.gateway("n3", "a"), world.manager() as b:
            assert b.bootstrapping.status().topics[0][1].startswith("subscribed at ")
            await distant.push(feed("manager was away"))
            await until(lambda: feed("manager was away") in bodies(reader))
            assert not reader.inbox.denied
            assert distant.unsubscribed == 0


async def test_an_upstream_subscription_that_nobody_wants_any_more_ends_at_the_next_start(world: World) -> None:
    """As after a kill between hearing that nothing is wanted and telling the hub."""
    async with DistantDomain() as distant, Reader() as reader:
        async with world.manager(), world.gateway("n3", "a") as a:
            await subscribed(reader, a, distant.topic)
        with Database.open(world.data / "b" / DATABASE_NAME, []) as database:
            database.write(lambda tx: tx.execute("DELETE FROM zone_requests")).result()
            database.write(lambda tx: tx.execute("DELETE FROM upstreams")).result()
        async with world.manager():
            await until(lambda: any(form["hub.mode"] == "unsubscribe" for form in distant.asked))


async def test_replayed_and_forged_lists_change_nothing(world: World) -> None:
    async with DistantDomain() as distant, Reader() as reader, world.manager() as b, world.gateway("n3", "a") as a:
        await subscribed(reader, a, distant.topic)
        assert a.bootstrapping.requester is not None
        assert b.bootstrapping.manager is not None
        name = a.bootstrapping.requester.request_table.requester
        manager, zone = b.bootstrapping.manager, zone_of(ZONE)
        before = manager.request_table.held
        item = requests_item(DEFAULT_NAMING, zone, name)
        empty = TopicRequests(ZONE, name, "fqdn-path", "sha1", 0, ())
        for serial, requests in ((0, ()), (0, (TopicRequest(RequestMode.SUBSCRIBE, distant.topic + "2", 99, 60),))):
            outcome = manager.request_table.hear(replace_list(empty, serial, requests), world.clock())
            assert outcome.refused is not None
        async with await Client.attach(socket_of(world.data / "net", "n2"), application="stranger") as stranger:
            # Somebody who says to be somebody else, and rubbish below the zone's scope.
            other = requests_item(DEFAULT_NAMING, zone, "00" * 16)
            await stranger.publish(other.sid, other.rid, encode(empty))
            rubbish = requests_item(DEFAULT_NAMING, zone, "11" * 16)
            await stranger.publish(rubbish.sid, rubbish.rid, b"\xff" * 100)
            await distant.push(feed("undisturbed"))
            await until(lambda: feed("undisturbed") in bodies(reader))
        assert manager.request_table.held == before
        assert item != other
        assert dict(b.bootstrapping.status().counters)["lists_replayed"] == 2


def replace_list(message: TopicRequests, serial: int, requests: tuple[TopicRequest, ...]) -> TopicRequests:
    return TopicRequests(message.zone, message.requester, message.scheme, message.hash, serial, requests)


async def test_the_hub_of_the_topic_may_be_the_manager_s_own(world: World) -> None:
    """Then its publisher pings B, and nobody is subscribed to."""
    async with DistantDomain() as distant, Reader() as reader, world.manager() as b, world.gateway("n3", "a") as a:
        distant_hub = type(distant).hub
        try:
            type(distant).hub = property(lambda _: b.hub.url)  # type: ignore[method-assign,assignment]
            await subscribed(reader, a, distant.topic)
            await until(lambda: bodies(reader) == [feed("first")])
            distant.body = feed("pinged")
            form = {"hub.mode": "publish", "hub.url": distant.topic}
            async with reader.http.post(b.hub.url, data=form) as answer:
                assert answer.status in (202, 204)
            await until(lambda: feed("pinged") in bodies(reader))
            assert not distant.asked
        finally:
            type(distant).hub = distant_hub  # type: ignore[method-assign]


def test_the_topic_of_these_tests_is_in_the_zone() -> None:
    assert zone_of(Topic.parse(f"http://{HOST}:80/feed").host).domain == ZONE
