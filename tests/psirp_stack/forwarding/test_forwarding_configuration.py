"""A node's configuration: what is read, and what people are told when it cannot be."""

import json
from pathlib import Path
from typing import Any

import pytest

from psirp_stack.forwarding_configuration import ConfigurationError, EthernetCarrier, UdpCarrier, configuration_of
from psirp_stack.links.impairment import Impairment
from psirp_stack.links.udp import UdpAddress
from tests.psirp_stack.frames import single_bit
from tests.psirp_stack.node_process import NodeProcess, hex_tags

TAGS = hex_tags(single_bit(5))
GOOD: dict[str, Any] = {
    "links": {
        "1": {"ethernet": "veth0", "tags": TAGS},
        "2": {"udp_fd": 5, "peer": ["127.0.0.1", 4000], "tags": TAGS, "impairment": "loss=0.5,delay=0.1"},
    },
    "incoming": {"1": hex_tags(single_bit(7))},
    "internal": hex_tags(single_bit(9)),
    "tap": "/run/node.tap",
}


def test_everything_is_read() -> None:
    read = configuration_of(GOOD)
    assert read.links[1].carrier == EthernetCarrier("veth0")
    assert read.links[2].carrier == UdpCarrier(5, UdpAddress("127.0.0.1", 4000))
    assert read.links[2].impairment == Impairment(loss=0.5, delay=0.1)
    assert read.tap == Path("/run/node.tap")
    assert read.table.links == {1: single_bit(5), 2: single_bit(5)}
    assert (read.table.internal, read.table.incoming) == (single_bit(9), {1: single_bit(7)})


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ([], "the configuration is list: expected an object"),
        ({"links": {}}, "lacks 'internal'"),
        (GOOD | {"link": {}}, "has 'link': expected incoming, internal, links, tap"),
        (GOOD | {"links": []}, "links: expected an object with link numbers"),
        (GOOD | {"links": {"one": {}}}, "links: expected an object with link numbers"),
        (GOOD | {"links": {"1": {"tags": TAGS}}}, 'link 1: expected "ethernet"'),
        (GOOD | {"links": {"1": {"tags": TAGS, "ethernet": "a", "udp_fd": 1}}}, 'link 1: expected "ethernet"'),
        (GOOD | {"links": {"1": {"tags": TAGS, "udp_fd": 1, "peer": ["example.org", 1]}}}, "link 1: 'example.org'"),
        (GOOD | {"links": {"1": {"tags": TAGS[1:], "ethernet": "a"}}}, "link 1: expected a list of 8 tags"),
        (
            GOOD | {"links": {"1": {"tags": TAGS, "ethernet": "a", "impairment": "luck=1"}}},
            "link 1: impairment 'luck=1'",
        ),
        (GOOD | {"internal": ["x"] * 8}, "internal: expected a list of 8 tags"),
        (GOOD | {"internal": ["1" + "0" * 62] * 8}, "internal: expected a list of 8 tags"),
        (GOOD | {"incoming": {"1": None}}, "incoming 1: expected a list of 8 tags"),
        (GOOD | {"tap": 5}, "tap is 5: expected a path"),
    ],
)
def test_what_is_wrong_is_said(document: object, reason: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        configuration_of(json.loads(json.dumps(document)))
    assert reason in str(refused.value)


def test_a_process_refuses_a_bad_configuration_with_one_line_and_code_2() -> None:
    with NodeProcess({"links": {}}) as node:
        assert "lacks 'internal'" in node.hear()["error"]
        assert node.wait() == 2


def test_a_process_refuses_lines_it_cannot_use_and_goes_on() -> None:
    with NodeProcess({"links": {}, "internal": TAGS}) as node:
        node.wait_ready()
        for line in ('{"originate": "xy"}', "[]", "no json", '{"originate": 5}'):
            node.say_line(line)
            assert "refused" in node.hear()
        assert node.finish()["statistics"]["received"] == 0
