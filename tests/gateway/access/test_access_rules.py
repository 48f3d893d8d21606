"""Rules for who may publish and subscribe: alone, and at the doors of a running gateway."""

import ipaddress
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access import AccessGuard, AccessRequest, AccessRules, Act, ArrivalRefused, Effect, Rule
from gateway.access.enforce import end_forbidden
from gateway.access.rules import EntrySide, topic_pattern, zone_pattern
from gateway.config import ConfigError, check
from gateway.gateway import Gateway, GatewayConfig, gateway_config
from identifiers.namespaces import STANDARD
from psirp_stack.emulation.network import EmulatedNetwork, socket_of
from psirp_stack.emulation.plan import plan
from psirp_stack.node.config import TimesFile
from push_hub.canary import CanaryConfig
from push_hub.hub import HubConfig
from tests.gateway.crossing.test_crossing import Publisher, Subscriber, World, feed
from tests.identifiers.test_namespaces import Rooms
from tests.waiting import until

DENY, ALLOW = Effect.DENY, Effect.ALLOW


def refused(
    access: AccessRules, name: str = "https://news.example.com/a/b", act: Act = Act.PUBLISH, **known: object
) -> bool:
    return access.refusal(AccessRequest(act, name, **known)) is not None  # type: ignore[arg-type]


def test_without_rules_the_default_decides() -> None:
    assert not refused(AccessRules())
    assert refused(AccessRules(default=DENY))


def test_the_first_rule_that_matches_decides() -> None:
    private = Rule(DENY, topics=(topic_pattern("news.example.com/a/"),))
    assert refused(AccessRules((private, Rule(ALLOW))))
    assert not refused(AccessRules((Rule(ALLOW), private)))


@pytest.mark.parametrize(
    ("topic", "name", "matches"),
    [
        ("https://news.example.com/a/", "http://NEWS.example.com:80/a/b", True),
        ("news.example.com/a/", "https://news.example.com/a/", True),
        ("news.example.com/a/", "https://news.example.com/ab", False),
        ("news.example.com/a", "https://news.example.com/a/b", False),
        ("news.example.com/a", "https://news.example.com/a", True),
        ("news.example.com", "https://news.example.com.evil.example/", False),
        ("news.example.com/a/", "https://news.example.com/a/../b", False),
        ("news.example.com/a/", "https://news.example.com/b/../a/c", True),
        ("news.example.com/%61/", "https://news.example.com/a/c", True),
    ],
)
def test_topics(topic: str, name: str, matches: bool) -> None:
    assert refused(AccessRules((Rule(DENY, topics=(topic_pattern(topic),)),)), name) is matches


@pytest.mark.parametrize(
    ("zone", "name", "matches"),
    [
        ("example.com", "https://example.com/", True),
        ("EXAMPLE.com", "https://a.b.example.com/", True),
        ("example.com", "https://notexample.com/", False),
        ("example.com", "https://example.com.evil.example/", False),
        ("example.com", "alice@example.com", True),
        ("bücher.example", "https://xn--bcher-kva.example/", True),
    ],
)
def test_zones(zone: str, name: str, matches: bool) -> None:
    assert refused(AccessRules((Rule(DENY, zones=(zone_pattern(zone),)),)), name) is matches


IDS = "::5a/::df"


def test_names_that_no_namespace_knows_are_let_in_by_rules_that_are_not_about_names() -> None:
    for name in ("room-7", f"item:{IDS}", "a/b/c"):
        assert not refused(AccessRules((Rule(DENY, clients=(ipaddress.ip_network("10.0.0.0/8"),)),)), name)
        assert not refused(AccessRules((Rule(ALLOW, token=True),), DENY), name, token=True)
        assert not refused(
            AccessRules((Rule(ALLOW, signers=frozenset({"ab" * 20}), origin=EntrySide.NETWORK),), DENY),
            name,
            origin=EntrySide.NETWORK,
            signer="ab" * 20,
        )


@pytest.mark.parametrize("about", [{"zones": ("example.com",)}, {"topics": (topic_pattern("news.example.com/a/"),)}])
@pytest.mark.parametrize("name", [f"item:{IDS}", "room-7"])
def test_what_may_stand_for_any_name_is_no_way_round_a_rule(name: str, about: dict[str, tuple[str, ...]]) -> None:
    assert refused(AccessRules((Rule(DENY, **about),)), name)  # type: ignore[arg-type]
    assert refused(AccessRules((Rule(ALLOW, **about),), DENY), name)  # type: ignore[arg-type]


def test_items_have_rules_by_their_ids() -> None:
    item, scope = topic_pattern(f"item:{IDS}"), topic_pattern("item:::5a/")
    for pattern in (item, scope):
        assert not refused(AccessRules((Rule(ALLOW, topics=(pattern,)),), DENY), IDS)
        assert refused(AccessRules((Rule(DENY, topics=(pattern,)),)), f"item:{'0' * 62}5a/::df")
        assert not refused(AccessRules((Rule(DENY, topics=(pattern,)),)), "item:::5b/::df")


def test_names_of_a_protocol_of_ones_own_have_rules() -> None:
    namespaces = STANDARD.plus(Rooms())
    villa = topic_pattern("room:villa/", namespaces)
    rules = AccessRules((Rule(DENY, topics=(villa,)),), namespaces=namespaces)
    assert refused(rules, "room:Villa/Hall")
    assert not refused(rules, "room:barn/hall")
    zone = AccessRules((Rule(ALLOW, zones=("villa.example",)),), DENY, namespaces=namespaces)
    assert not refused(zone, "room:villa.example/hall")
    assert refused(zone, "room:barn.example/hall")
    assert refused(zone, "room:no-room"), "what is no name of its namespace is refused"


def test_who() -> None:
    only_home = AccessRules((Rule(ALLOW, clients=(ipaddress.ip_network("10.0.0.0/8"),)),), DENY)
    assert not refused(only_home, client="10.1.2.3")
    assert not refused(only_home, client="::ffff:10.1.2.3")
    assert refused(only_home, client="11.1.2.3")
    assert refused(only_home, client=None), "whose address is not known is not let in by address"
    assert refused(only_home, client="nonsense")
    only_token = AccessRules((Rule(ALLOW, token=True),), DENY)
    assert refused(only_token)
    assert not refused(only_token, token=True)
    only_reader = AccessRules((Rule(ALLOW, callbacks=("https://reader.example/",)),), DENY)
    assert not refused(only_reader, act=Act.SUBSCRIBE, callback="https://reader.example/x")
    assert refused(only_reader, act=Act.SUBSCRIBE, callback="https://reader.example.evil/x")
    only_signed = AccessRules((Rule(ALLOW, signers=frozenset({"ab" * 20}), origin=EntrySide.NETWORK),), DENY)
    assert not refused(only_signed, origin=EntrySide.NETWORK, signer="ab" * 20)
    assert refused(only_signed, origin=EntrySide.NETWORK, signer=None)
    assert refused(only_signed, signer="ab" * 20)


@given(st.text(max_size=60))
def test_no_name_escapes_the_default(name: str) -> None:
    assert refused(AccessRules(default=DENY), name)
    AccessRules((Rule(DENY, zones=("example.com",)),)).refusal(AccessRequest(Act.PUBLISH, name))


def test_the_section_names_what_is_wrong(tmp_path: Path) -> None:
    for rule, key in (
        ({"effect": "perhaps"}, "access.rules[0].effect"),
        ({"effect": "deny", "clients": ["10.0.0.0/99"]}, "access.rules[0].clients"),
        ({"effect": "deny", "zones": ["not a zone"]}, "access.rules[0].zones"),
        ({"effect": "deny", "acts": []}, "access.rules[0].acts"),
        ({"effect": "deny", "acts": ["publish"], "callbacks": ["https://a/"]}, "access.rules[0].callbacks"),
        ({"effect": "deny", "acts": ["subscribe"], "token": True}, "access.rules[0]"),
        ({"effect": "deny", "who": "me"}, "access.rules[0].who"),
    ):
        with pytest.raises(ConfigError) as error:
            check({"node": {"name": "a"}, "access": {"rules": [rule]}}, tmp_path)
        assert key in str(error.value)
    rule = {"effect": "deny", "zones": ["example.com"], "reason": "no"}
    config = check({"node": {"name": "a"}, "access": {"default": "deny", "rules": [rule]}}, tmp_path)
    assert config.access.default is DENY
    assert config.access.rules[0].zones == ("example.com",)


def test_what_the_network_brings_is_told_when_it_is_refused() -> None:
    told: list[object] = []
    guard = AccessGuard(AccessRules((Rule(DENY, origin=EntrySide.NETWORK, reason="no"),)), told.append)
    assert not guard.admits("http://example.com/", None)
    assert told == [ArrivalRefused("http://example.com/", "no")]
    assert guard.refused == 1


# At the doors of a gateway.


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[EmulatedNetwork]:
    (tmp_path / "net").mkdir()
    network_plan = plan({"generate": {"kind": "line", "nodes": 2}}, tmp_path)
    network = await EmulatedNetwork.start(network_plan, tmp_path / "net", TimesFile(hello=0.1))
    await network.settled()
    yield network
    await network.close()


def config_of(data: Path, node: str, name: str) -> GatewayConfig:
    hub = HubConfig(data / name / "hub", allow_private=True, canary=CanaryConfig(enabled=False))
    return gateway_config(data / name, hub, attach=socket_of(data / "net", node))


async def test_at_the_doors_of_a_gateway(network: EmulatedNetwork, tmp_path: Path) -> None:
    from aiohttp import ClientSession

    async with ClientSession() as http, Publisher() as publisher, Subscriber() as good, Subscriber() as other:
        publishing, subscribing = frozenset({Act.PUBLISH}), frozenset({Act.SUBSCRIBE})
        rules = AccessRules(
            (
                Rule(DENY, subscribing, callbacks=(other.callback,), reason="not you"),
                Rule(DENY, publishing, clients=(ipaddress.ip_network("127.0.0.0/8"),), reason="not from there"),
            )
        )
        a = Gateway(replace(config_of(tmp_path, "n1", "a"), access=rules))
        b = Gateway(config_of(tmp_path, "n0", "b"))
        world = World(network, plan({"generate": {"kind": "line", "nodes": 2}}, tmp_path), tmp_path, http)
        await a.start()
        await b.start()
        try:
            await world.subscribe(a, publisher.topic, good.callback)
            form = {"hub.mode": "subscribe", "hub.topic": publisher.topic, "hub.callback": other.callback}
            async with http.post(a.hub.url, data=form) as answer:
                assert answer.status == 202
            await until(lambda: a.access.refused == 1)
            async with http.post(a.hub.url, data={"hub.mode": "publish", "hub.url": publisher.topic}) as answer:
                assert answer.status == 403
                assert "not from there" in await answer.text()
            await world.ping(b, publisher.topic)
            await until(lambda: good.received)
            # Now the network may bring nothing either: the next version is not taken, and the one after a change is.
            a.access.rules = AccessRules((Rule(DENY, publishing, origin=EntrySide.NETWORK),))
            publisher.body = feed("second")
            await world.ping(b, publisher.topic)
            await until(lambda: a.access.refused == 3)
            a.access.rules = AccessRules()
            publisher.body = feed("third")
            await world.ping(b, publisher.topic)
            await until(lambda: len(good.received) == 2)
            assert good.received[1][1] == feed("third")
            assert not other.received
            # Rules that come later count for who is there already.
            assert await end_forbidden(a.hub, a.access) == 0
            a.access.rules = AccessRules((Rule(DENY, subscribing, callbacks=(good.callback,), reason="no longer"),))
            assert await end_forbidden(a.hub, a.access) == 1
            assert a.hub.subscriptions.count(publisher.topic) == 0
        finally:
            await a.stop()
            await b.stop()
