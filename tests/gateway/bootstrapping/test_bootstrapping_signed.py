"""Gateways that sign: who may ask a zone's manager, and which manager is believed. Two nodes with keys, over UDP."""

import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.bootstrapping import BootstrappingConfig
from gateway.bootstrapping.events import ZoneAnnounced
from gateway.bootstrapping.messages import TopicRequests, announcement_item
from gateway.gateway import Gateway, gateway_config
from identifiers import DEFAULT_NAMING, zone_of
from psirp_stack.authentication.files import save_key_pair, save_public_key
from psirp_stack.authentication.keys import KeyPair
from psirp_stack.authentication.trust import TRUSTED_SUFFIX
from psirp_stack.node.config import DomainFile, KeysFile, LinkFile, NodeFile, NodeRole, TimesFile
from push_hub.canary import CanaryConfig
from push_hub.hub import HubConfig
from tests.gateway.bootstrapping.distant import HOST, DistantDomain, Reader, feed
from tests.gateway.bootstrapping.test_bootstrapping import QUICK, ZONE, bodies, denied, subscribed
from tests.waiting import until

STRANGER = KeyPair(b"\x07" * 32).hash.hex()


class Keyed:
    """Nodes `a` and `b`, a key each, known to both."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.events: list[object] = []
        self.keys = {name: KeyPair.generate() for name in ("a", "b")}
        (data / "trusted").mkdir()
        for name, key in self.keys.items():
            save_key_pair(key, data / f"{name}.key")
            save_public_key(key.public, data / "trusted" / f"{name}{TRUSTED_SUFFIX}")
        with ExitStack() as stack:
            ends = [stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)) for _ in self.keys]
            for end in ends:
                end.bind(("127.0.0.1", 0))
            self._addresses = [f"127.0.0.1:{end.getsockname()[1]}" for end in ends]

    def hash(self, name: str) -> str:
        return self.keys[name].hash.hex()

    @asynccontextmanager
    async def gateway(self, name: str, bootstrapping: BootstrappingConfig) -> AsyncIterator[Gateway]:
        own, peer = self._addresses if name == "a" else self._addresses[::-1]
        node = NodeFile(
            name=name,
            roles=tuple(NodeRole) if name == "b" else (),
            data=str(self.data / f"{name}-node"),
            links=(LinkFile(udp=own, peer=peer),),
            keys=KeysFile(str(self.data / f"{name}.key"), str(self.data / "trusted"), require_signatures=True),
            times=TimesFile(hello=0.1),
            domain=DomainFile(rendezvous=("b",), topology=("b",)),
        )
        hub = HubConfig(
            self.data / name / "hub",
            allow_private=True,
            canary=CanaryConfig(enabled=False),
            hosts=((HOST, "127.0.0.1"),),
        )
        config = gateway_config(self.data / name, hub, node=node, bootstrapping=bootstrapping)
        gateway = Gateway(config, observer=self.events.append)
        await gateway.start()
        try:
            yield gateway
        finally:
            await gateway.stop()

    @asynccontextmanager
    async def both(
        self, requester_keys: tuple[str, ...], manager_keys: tuple[str, ...]
    ) -> AsyncIterator[tuple[Gateway, Gateway]]:
        managing = replace(QUICK, zones=(ZONE,), requester_keys=requester_keys)
        asking = replace(QUICK, manager_keys=manager_keys, answer_timeout=3.0)
        async with self.gateway("b", managing) as b, self.gateway("a", asking) as a:
            await until(lambda: any(isinstance(event, ZoneAnnounced) for event in self.events))
            channel = announcement_item(DEFAULT_NAMING, zone_of(ZONE))

            async def announced(a: Gateway = a) -> bool:
                return bool((await a.network.explain(channel)).publishers)

            await until(announced)
            yield a, b


@pytest.fixture
def keyed(tmp_path: Path) -> Keyed:
    return Keyed(tmp_path)


async def test_those_whose_keys_are_known_to_each_other_work_together(keyed: Keyed) -> None:
    async with (
        DistantDomain() as distant,
        Reader() as reader,
        keyed.both((keyed.hash("a"),), (keyed.hash("b"),)) as (a, b),
    ):
        await subscribed(reader, a, distant.topic)
        await distant.push(feed("signed all the way"))
        await until(lambda: feed("signed all the way") in bodies(reader))
        assert b.bootstrapping.manager is not None
        assert a.bootstrapping.requester is not None
        # Nobody else can say any more what A wants.
        forged = TopicRequests(ZONE, a.bootstrapping.requester.request_table.requester, "fqdn-path", "sha1", 10**9, ())
        assert b.bootstrapping.manager.request_table.hear(forged, 0.0, keyed.hash("b")).refused is not None


async def test_a_gateway_that_may_not_ask_is_told_so(keyed: Keyed) -> None:
    async with DistantDomain() as distant, Reader() as reader, keyed.both((STRANGER,), ()) as (a, _):
        assert "only gateways whose keys it was told" in await denied(reader, a, distant.topic)
        assert not distant.asked


async def test_a_manager_that_is_not_believed_counts_as_one_that_does_not_answer(keyed: Keyed) -> None:
    async with DistantDomain() as distant, Reader() as reader, keyed.both((), (STRANGER,)) as (a, _):
        assert "did not answer in 3 seconds" in await denied(reader, a, distant.topic)
        assert dict(a.bootstrapping.status().counters)["managers_disbelieved"] >= 1
