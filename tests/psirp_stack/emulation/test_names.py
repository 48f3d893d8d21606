"""Names in files of graphs that are no names of nodes: networks come up with names made from them."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psirp_stack.control.messages import Name
from psirp_stack.emulation.names import node_names
from psirp_stack.emulation.network import EmulatedNetwork
from psirp_stack.emulation.plan import PlanError, plan
from psirp_stack.node.config import TimesFile

ROCKETFUEL = "Adelaide,+Australia1722\tPerth,+Australia1743\nPerth,+Australia1743\tSydney=(2)\n"


@given(st.lists(st.text(min_size=1, max_size=80), max_size=20))
def test_every_name_becomes_one_of_a_node_and_no_two_the_same(given: list[str]) -> None:
    made = node_names(given)
    assert set(made) == set(given)
    assert len(set(made.values())) == len(set(given))
    for name in made.values():
        msgspec.convert(name, Name)


@given(st.lists(st.from_regex(r"\A[A-Za-z0-9]([A-Za-z0-9._-]{0,30}[A-Za-z0-9])?\Z"), max_size=20))
def test_names_of_nodes_stay(given: list[str]) -> None:
    assert node_names(given) == {name: name for name in given}


def test_what_becomes_the_same_is_numbered_and_what_is_right_is_left_alone() -> None:
    assert node_names(["a,b", "a-b", "a+b", "+"]) == {"a-b": "a-b", "a,b": "a-b-2", "a+b": "a-b-3", "+": "node"}


async def test_a_network_with_such_names_comes_up(tmp_path: Path) -> None:
    (tmp_path / "graph.tsv").write_text(ROCKETFUEL)
    document: dict[str, object] = {
        "edges": "graph.tsv",
        "roles": {"rendezvous": "Perth,+Australia1743"},
        "links": [{"between": ["Sydney=(2)", "Adelaide,+Australia1722"], "delay": 0.001}],
    }
    made = plan(document, tmp_path)
    assert made.graph.names == ("Adelaide-Australia1722", "Perth-Australia1743", "Sydney-2")
    assert made.rendezvous == made.topology == ("Perth-Australia1743",)
    assert made.impairment("Sydney-2", "Adelaide-Australia1722").delay == 0.001
    network = await EmulatedNetwork.start(made, tmp_path / "net", TimesFile(hello=0.1))
    async with asyncio.timeout(20):
        await network.settled()
    await network.close()


def test_a_role_for_nobody_is_said(tmp_path: Path) -> None:
    (tmp_path / "graph.tsv").write_text(ROCKETFUEL)
    with pytest.raises(PlanError, match="no node is named 'Hobart'"):
        plan({"edges": "graph.tsv", "roles": {"topology": "Hobart"}}, tmp_path)
