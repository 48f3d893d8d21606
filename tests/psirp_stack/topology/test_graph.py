"""Edge lists, shortest-path trees and generated graphs."""

from collections import deque
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psirp_stack.edge_list_file import read_edges
from psirp_stack.graph import (
    EdgeListError,
    Graph,
    GraphError,
    Routing,
    UnreachableError,
    backbone_graph,
    grid_graph,
    parse_edges,
)


def distances(graph: Graph, source: int) -> dict[int, int]:
    found = {source: 0}
    queue = deque([source])
    while queue:
        node = queue.popleft()
        for tail, head in graph.links:
            if tail == node and head not in found:
                found[head] = found[node] + 1
                queue.append(head)
    return found


def test_edge_list_with_comments_and_extra_columns() -> None:
    graph = parse_edges("# a source\n# a\tb\tweight\nParis\tRome,+IT1\t2.5\t1.0\r\n\nRome,+IT1\tBern\n")
    assert graph.names == ("Paris", "Rome,+IT1", "Bern")
    assert graph.undirected_links == 2
    link = graph.link(graph.node("Rome,+IT1"), graph.node("Bern"))
    assert graph.links[graph.reverse[link]] == (graph.node("Bern"), graph.node("Rome,+IT1"))
    assert graph.link_number(link) == 1


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("a\tb\nc d\n", 2, "expected two node names separated by a tab, found one column"),
        ("#x\na\t \n", 2, "a node name is empty"),
        ("a\tb\na\ta\n", 2, "the link joins 'a' to itself"),
        ("a\tb\nb\tc\nb\ta\n", 3, "the link 'b' to 'a' was on line 1 already"),
        ("# nothing\n", 1, "no links found"),
    ],
)
def test_a_bad_edge_list_is_refused_with_line_and_reason(text: str, line: int, reason: str) -> None:
    with pytest.raises(EdgeListError) as caught:
        parse_edges(text, "net.tsv")
    assert str(caught.value) == f"net.tsv, line {line}: {reason}"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(EdgeListError, match="cannot be read"):
        read_edges(tmp_path / "absent.tsv")
    binary = tmp_path / "binary.tsv"
    binary.write_bytes(b"a\t\xff\xfe\n")
    with pytest.raises(EdgeListError, match="not UTF-8"):
        read_edges(binary)
    good = tmp_path / "good.tsv"
    good.write_text("a\tb\n", encoding="utf-8")
    assert read_edges(good).undirected_links == 1


@given(st.text(alphabet="ab\t\n#\r ", max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        graph = parse_edges(text)
    except EdgeListError:
        return
    assert graph.undirected_links >= 1


@given(st.integers(2, 30), st.integers(0, 2**32), st.data())
def test_delivery_trees_are_shortest_paths(nodes: int, seed: int, data: st.DataObject) -> None:
    links = data.draw(st.integers(nodes - 1, min(nodes * (nodes - 1) // 2, 3 * nodes)))
    graph = backbone_graph(nodes, links, seed)
    assert graph.undirected_links == links
    source = data.draw(st.integers(0, nodes - 1))
    subscribers = data.draw(st.sets(st.integers(0, nodes - 1), min_size=1))
    tree = Routing(graph, seed).delivery_tree(source, subscribers)
    far = distances(graph, source)
    assert len(far) == nodes, "generated graphs are connected"
    assert set(tree.subscribers) == subscribers - {source}
    for node in tree.subscribers:
        assert len(tree.path(graph, node)) == far[node]
    assert set(tree.links) == {link for node in tree.subscribers for link in tree.path(graph, node)}


def test_unreachable_subscriber_and_unknown_names() -> None:
    graph = Graph.from_edges(["a", "b", "c", "d"], [(0, 1), (2, 3)])
    with pytest.raises(UnreachableError, match="no path leads from 'a' to 'c'"):
        Routing(graph).delivery_tree(0, [1, 2])
    with pytest.raises(GraphError, match="no node is named 'z'"):
        graph.node("z")
    with pytest.raises(GraphError, match="no link leads from 'a' to 'd'"):
        graph.link(0, 3)


def test_routing_is_fixed_by_its_seed() -> None:
    graph = grid_graph(5, 5)
    trees = {Routing(graph, seed).whole_tree(0).links for seed in range(8)}
    assert len(trees) > 1, "ties are broken differently under different seeds"
    assert Routing(graph, 3).whole_tree(0) == Routing(graph, 3).whole_tree(0)


def test_impossible_graphs() -> None:
    with pytest.raises(GraphError):
        backbone_graph(4, 2, 0)
    with pytest.raises(GraphError):
        backbone_graph(4, 7, 0)
    with pytest.raises(GraphError):
        Graph.from_edges(["a"], [(0, 0)])
