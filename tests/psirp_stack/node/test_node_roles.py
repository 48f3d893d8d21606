"""A member that claims a role which nobody granted it changes nothing in its network."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from identifiers import Identifier, ItemId
from psirp_stack.authentication.keys import KeyPair
from psirp_stack.control.codes import Code, Function, ServiceRole
from psirp_stack.control.link_state_settings import LinkStateDrop
from psirp_stack.control.messages import Reply, Served, StartPublish, StopPublish, encode
from psirp_stack.control.role_grants import RoleHolder, RoleTrust, make_grant
from psirp_stack.emulation.simulation import WALL_MS_AT_START, SimulatedNetwork
from psirp_stack.graph import Graph
from psirp_stack.node.config import NodeConfigError, check
from psirp_stack.node.settings import NodeDrop, NodeSettings
from psirp_stack.node.status import account

BOTH = ServiceRole.RENDEZVOUS | ServiceRole.TOPOLOGY
ITEM = ItemId(Identifier(b"\1" * 32), Identifier(b"\2" * 32))
DOMAIN = KeyPair(b"d" * 32)
KEYS = {name: KeyPair(name.encode() * 16) for name in ("n0", "n1", "n2", "n3")}
LINE = Graph.from_edges(tuple(KEYS), [(0, 1), (1, 2), (2, 3)])


@pytest.fixture
def open_networks() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def with_an_imposter(tmp_path: Path, open_networks: ExitStack) -> SimulatedNetwork:
    """n2 is named by the domain; n0, first in the alphabet, claims both roles as well."""

    def settings(given: NodeSettings) -> NodeSettings:
        return replace(given, trust=RoleTrust({ServiceRole.RENDEZVOUS: ["n2"], ServiceRole.TOPOLOGY: ["n2"]}))

    network = SimulatedNetwork(LINE, tmp_path, roles={"n0": BOTH, "n2": BOTH}, settings=settings)
    open_networks.callback(network.close)
    network.run(5.0)
    return network


def test_a_member_without_a_grant_is_ignored_counted_and_shown(tmp_path: Path, open_networks: ExitStack) -> None:
    network = with_an_imposter(tmp_path, open_networks)
    for name in ("n1", "n2", "n3"):
        node = network.nodes[name]
        assert node.link_state.nodes_with(ServiceRole.RENDEZVOUS) == ("n2",)
        assert node.link_state.nodes_with(ServiceRole.TOPOLOGY) == ("n2",)
        assert node.link_state.drops[LinkStateDrop.ROLE_NOT_GRANTED] > 0
        told = json.loads(json.dumps(account(node)))
        assert [(one["node"], one["roles"]) for one in told["doubted"]] == [("n0", "rendezvous and topology")]
        assert told["drops"]["link state: role claimed without a grant"] > 0
    publisher, subscriber = network.application("n1"), network.application("n3")
    subscriber.subscribe(ITEM)
    publisher.publish(ITEM, b"news")
    assert network.run_until(lambda: subscriber.contents(ITEM) == [b"news"], 5.0)


@pytest.mark.parametrize(
    "message",
    [
        Reply(1, Code.SUCCESS),
        StopPublish(bytes(ITEM.sid), bytes(ITEM.rid), 1 << 60),
        StartPublish(bytes(ITEM.sid), bytes(ITEM.rid), 1 << 60, ()),
        Served(bytes(ITEM.sid), bytes(ITEM.rid), 1 << 60, None, Code.UNREACHABLE, policy=None),  # type: ignore[arg-type]
    ],
)
def test_messages_of_a_role_are_taken_from_those_who_have_it(
    tmp_path: Path, open_networks: ExitStack, message: Reply | StartPublish | StopPublish | Served
) -> None:
    network = with_an_imposter(tmp_path, open_networks)
    if isinstance(message, Served):
        from psirp_stack.control.messages import OPEN_SCOPE

        message = Served(message.sid, message.rid, message.generation, None, message.code, OPEN_SCOPE)
    publisher, subscriber = network.application("n1"), network.application("n3")
    subscriber.subscribe(ITEM)
    publisher.publish(ITEM, b"one")
    assert network.run_until(lambda: subscriber.contents(ITEM) == [b"one"], 5.0)
    imposter = network.nodes["n0"]
    for victim in ("n1", "n3"):
        imposter.courier.send(victim, Function.NODE, encode(message), network.clock.now())
    imposter.handle_timer(network.clock.now())
    network.run(1.0)
    assert all(network.nodes[name].drops[NodeDrop.NO_ROLE] == 1 for name in ("n1", "n3"))
    publisher.publish(ITEM, b"two")
    assert network.run_until(lambda: subscriber.contents(ITEM) == [b"one", b"two"], 5.0)


def test_grants_signed_with_the_key_of_the_domain_are_believed_until_they_end(
    tmp_path: Path, open_networks: ExitStack
) -> None:
    seconds = 60

    def settings(given: NodeSettings) -> NodeSettings:
        key = KEYS[given.name]
        until = WALL_MS_AT_START + 1000 * (seconds if given.name == "n1" else 10**6)
        holder = RoleHolder(make_grant(DOMAIN, given.name, BOTH, key.public, until), key) if given.roles else None
        return replace(given, trust=RoleTrust(key=DOMAIN.public), holder=holder)

    network = SimulatedNetwork(LINE, tmp_path, roles={"n1": BOTH, "n3": BOTH}, settings=settings)
    open_networks.callback(network.close)
    network.run(5.0)
    for name in KEYS:
        assert network.nodes[name].link_state.nodes_with(ServiceRole.RENDEZVOUS) == ("n1", "n3")
    network.run(seconds + 120.0)
    for name in ("n0", "n2", "n3"):
        assert network.nodes[name].link_state.nodes_with(ServiceRole.RENDEZVOUS) == ("n3",)
        assert network.nodes[name].link_state.doubted()["n1"][1] == "its grant is over"


def test_a_role_that_nobody_would_believe_is_a_mistake_in_the_configuration() -> None:
    named = {"rendezvous": ["b"], "topology": ["a"]}
    with pytest.raises(NodeConfigError, match="nobody would believe that 'a' is rendezvous"):
        check({"name": "a", "roles": ["rendezvous"], "domain": named})
    check({"name": "a", "roles": ["topology"], "domain": named})
    with pytest.raises(NodeConfigError, match="needs `keys"):
        check({"name": "a", "roles": ["topology"], "keys": {"grant": "a.grant"}})
