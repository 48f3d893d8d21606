"""Forwarders in network namespaces of their own, joined by veth pairs, over raw Ethernet."""

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from psirp_stack.links.ethernet import EthernetLink
from psirp_stack.wire.numbers import TTL_OFFSET
from tests.psirp_stack.frames import fid, frame, single_bit
from tests.psirp_stack.node_process import NodeProcess, hex_tags


def why_not() -> str | None:
    if os.geteuid() != 0:
        return "needs root to make network namespaces"
    if shutil.which("ip") is None:
        return "needs the `ip` command (Debian package iproute2)"
    return None


pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

EDGES = [(0, 1), (1, 2), (1, 3), (2, 3)]
"""A source, a branching node, and two leaves that are joined as well."""


def ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=20, check=False)
    if done.returncode and arguments[:2] == ("netns", "add") and "not permitted" in done.stderr:
        pytest.skip(f"this machine does not allow network namespaces: {done.stderr.strip()}")
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def wait_until_up(interface: str, *where: str) -> None:
    """The kernel brings an interface up a little later than it says; frames sent before that vanish."""
    for _ in range(1000):
        if "state UP" in ip(*where, "link", "show", interface):
            return
    raise AssertionError(f"{interface} did not come up")


@pytest.fixture
def namespaces() -> Iterator[list[str]]:
    """Four namespaces joined as EDGES says. In namespace a, the interface to b is called `to-b`."""
    unique = f"psph{secrets.token_hex(3)}"
    names = [f"{unique}-{number}" for number in range(4)]
    with ExitStack() as stack:
        for name in names:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
        for one, other in EDGES:
            ends = (
                "name",
                f"to-{other}",
                "netns",
                names[one],
                "type",
                "veth",
                "peer",
                "name",
                f"to-{one}",
                "netns",
                names[other],
            )
            ip("link", "add", *ends)
            for name, interface in ((names[one], f"to-{other}"), (names[other], f"to-{one}")):
                ip("-n", name, "link", "set", interface, "mtu", "1400", "up")
        for one, other in EDGES:
            wait_until_up(f"to-{other}", "-n", names[one])
            wait_until_up(f"to-{one}", "-n", names[other])
        yield names


def tag_bit(one: int, other: int) -> int:
    """Each directed link has a bit of its own."""
    return 10 * one + other


def configuration(node: int) -> dict[str, object]:
    neighbours = sorted({*(b for a, b in EDGES if a == node), *(a for a, b in EDGES if b == node)})
    return {
        "links": {
            str(to): {"ethernet": f"to-{to}", "tags": hex_tags(single_bit(tag_bit(node, to)))} for to in neighbours
        },
        "incoming": {str(to): hex_tags(single_bit(tag_bit(to, node))) for to in neighbours},
        "internal": hex_tags(single_bit(200 + node)),
    }


def path(*links: tuple[int, int], to: tuple[int, ...]) -> bytes:
    return fid(*(1 << tag_bit(*link) for link in links), *(1 << (200 + node) for node in to))


def test_a_frame_branches_across_namespaces_and_a_loop_is_cut(namespaces: list[str]) -> None:
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(NodeProcess(configuration(number), prefix=["ip", "netns", "exec", name]))
            for number, name in enumerate(namespaces)
        ]
        for node in nodes:
            node.wait_ready()

        there = frame(path((0, 1), (1, 2), (1, 3), to=(2, 3)), payload=b"x" * 1300)
        for _ in range(10):
            nodes[0].originate(there)
        for leaf in (2, 3):
            for _ in range(10):
                got = nodes[leaf].delivered()
                assert got[TTL_OFFSET] == 0xFC
                assert got[TTL_OFFSET + 1 :] == there[TTL_OFFSET + 1 :]

        looping = path((0, 1), (1, 2), (2, 3), (3, 1), to=(3,))
        nodes[0].originate(frame(looping, payload=b"round and round"))
        assert nodes[3].delivered().endswith(b"round and round")
        # The looping copy is on its way to node 1 before this one: a veth keeps the order, so it arrives first.
        nodes[3].originate(frame(path((3, 1), (1, 0), to=(0,)), payload=b"after it"))
        assert nodes[0].delivered().endswith(b"after it")

        nodes[0].originate(frame(path((0, 1), to=(1,)), payload=b"y" * 1400))
        nodes[0].originate(frame(path((0, 1), to=(1,)), payload=b"fits"))
        assert nodes[1].delivered().endswith(b"fits")

        source = nodes[0].finish()
        assert source["links"]["1"]["oversized"] == 1, "the MTU was read from the interface"
        middle = nodes[1].finish()
        assert middle["statistics"]["drops"]["loop"] == 1
        assert middle["statistics"]["forwarded"] == 12
        assert middle["links"]["0"]["received"] == 12
        assert middle["links"]["3"]["from_strangers"] == 0, "own frames do not come back"


@pytest.fixture
def veth() -> Iterator[tuple[str, str]]:
    unique = secrets.token_hex(3)
    one, other = f"psa{unique}", f"psb{unique}"
    ip("link", "add", one, "type", "veth", "peer", "name", other)
    try:
        ip("link", "set", one, "up")
        ip("link", "set", other, "up")
        wait_until_up(one)
        wait_until_up(other)
        yield one, other
    finally:
        ip("link", "del", one)


def test_ends_of_a_veth(veth: tuple[str, str]) -> None:
    one, other = map(EthernetLink, veth)
    got: list[bytes] = []
    other.on_receive(got.extend)
    for number in range(10):
        assert one.send(bytes((number,)) * 100)
    assert [other.drain(4), other.drain(100)] == [4, 6]
    assert got == [bytes((number,)) * 100 for number in range(10)]
    assert one.drain() == 0, "own frames are not heard"
    assert one.mtu == 1500
    assert one.send(bytes(1500))
    assert not one.send(bytes(1501))
    one.close()
    other.close()


def test_only_the_configured_station_is_heard(veth: tuple[str, str]) -> None:
    one = EthernetLink(veth[0])
    other = EthernetLink(veth[1], peer=b"\x02\x00\x00\x00\x00\x01")
    friend = EthernetLink(veth[1], peer=one.address)
    one.send(b"x" * 60)
    assert (other.drain(), other.counters.from_strangers, other.counters.received) == (1, 1, 0)
    assert (friend.drain(), friend.counters.from_strangers, friend.counters.received) == (1, 0, 1)
    for link in (one, other, friend):
        link.close()


def test_an_interface_that_goes_down_is_counted_not_raised(veth: tuple[str, str]) -> None:
    one = EthernetLink(veth[0])
    ip("link", "set", veth[0], "down")
    assert not one.send(b"x" * 60)
    one.drain()
    assert one.counters.send_errors == 1
    ip("link", "set", veth[0], "up")
    wait_until_up(veth[0])
    assert one.send(b"x" * 60), "the link works again with its interface"
    assert one.send_many([b"x" * 60, bytes(one.mtu + 1)]) == 1
    assert (one.counters.sent, one.counters.oversized) == (2, 1)
    one.close()
    assert not one.send(b"x")
    assert one.send_many([b"x"]) == 0
    assert one.counters.after_close == 2


def test_what_cannot_be_opened_says_so() -> None:
    with pytest.raises(OSError, match="No such device"):
        EthernetLink("psph-none")
    with pytest.raises(OSError, match="longer than 15"):
        EthernetLink("a-very-long-interface-name")
    with pytest.raises(ValueError, match="expected 6"):
        EthernetLink("lo", peer=b"\x01")
