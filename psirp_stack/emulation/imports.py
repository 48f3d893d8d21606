"""Networks from other people's files: Topology Zoo (GraphML), Rocketfuel, Mini-NDN.

| file | what is read |
|---|---|
| `*.graphml` | nodes, labels, edges; `LinkSpeedRaw` as bandwidth; a delay from where both ends are |
| `*.cch` | Rocketfuel's maps of routers: the links inside the network |
| `*.intra` | Rocketfuel's links with weights; in `latencies.intra` the third column is a delay in ms |
| `*.conf` | Mini-NDN: `[nodes]` and `[links]`, with `delay`, `bw` (Mbit/s), `loss` (per cent), `max_queue_size` |
| anything else | two names a line, separated by a tab |
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from psirp_stack.edge_list_file import MAX_EDGE_FILE_BYTES, read_edges
from psirp_stack.graph import EdgeListError, Graph, GraphError
from psirp_stack.links.impairment import Impairment

KILOMETRES_A_SECOND = 200_000
"""Light in fibre."""
EARTH_RADIUS = 6371.0
_GRAPHML = "{http://graphml.graphdrawing.org/xmlns}"
_CCH = re.compile(r"^(-?\d+)\s+@(\S+)")
_CCH_NEIGHBOURS = re.compile(r"<(\d+)>")
_QUANTITY = re.compile(r"^([0-9.]+)\s*(ms|us|s)?$")
_SECONDS = {"ms": 1e-3, "us": 1e-6, "s": 1.0, None: 1e-3}


@dataclass(slots=True)
class ImportedNetwork:
    """A graph, and how good its links are where the file says so."""

    graph: Graph
    quality: dict[frozenset[str], Impairment] = field(default_factory=dict)


def read_network(path: Path) -> ImportedNetwork:
    """Read a file by its name; every problem is a `GraphError` that names the file."""
    suffix = path.suffix.lower()
    reader: Callable[[str, str], ImportedNetwork] | None = {
        ".graphml": read_graphml,
        ".cch": read_rocketfuel_routers,
        ".intra": read_rocketfuel_links,
        ".conf": read_mini_ndn,
    }.get(suffix)
    if reader is None:
        return ImportedNetwork(read_edges(path))
    try:
        if path.stat().st_size > MAX_EDGE_FILE_BYTES:
            raise GraphError(f"{path}: larger than {MAX_EDGE_FILE_BYTES} bytes")
        return reader(path.read_text(encoding="utf-8", errors="replace"), str(path))
    except OSError as error:
        raise GraphError(f"{path}: cannot be read ({error.strerror})") from None


class _Builder:
    """Nodes and links as they are found; a link that comes twice, or leads back to its node, counts once or not."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.edges: dict[tuple[int, int], None] = {}
        self.quality: dict[frozenset[str], Impairment] = {}

    def node(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers))

    def link(self, one: str, other: str, quality: Impairment | None = None) -> None:
        a, b = self.node(one), self.node(other)
        if a == b:
            return
        self.edges.setdefault((min(a, b), max(a, b)))
        if quality is not None and quality != Impairment():
            self.quality.setdefault(frozenset((one, other)), quality)

    def network(self, source: str) -> ImportedNetwork:
        if not self.edges:
            raise GraphError(f"{source}: no links between two nodes")
        linked = {end for edge in self.edges for end in edge}
        kept = [name for name, number in self.numbers.items() if number in linked]
        places = {self.numbers[name]: place for place, name in enumerate(kept)}
        graph = Graph.from_edges(kept, [(places[a], places[b]) for a, b in self.edges])
        return ImportedNetwork(graph, self.quality)


# Topology Zoo.


def read_graphml(text: str, source: str) -> ImportedNetwork:
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise GraphError(f"{source}: a graph needs no document type: take it out")
    try:
        root = ElementTree.fromstring(text)  # noqa: S314  (without a document type there are no entities)
    except ElementTree.ParseError as error:
        raise GraphError(f"{source}: not XML: {error}") from None
    keys = {key.get("id"): key.get("attr.name") for key in root.iter(f"{_GRAPHML}key")}
    graph = root.find(f"{_GRAPHML}graph")
    if graph is None:
        raise GraphError(f"{source}: no `graph` in the namespace of GraphML")
    names: dict[str, str] = {}
    places: dict[str, tuple[float, float]] = {}
    for node in graph.iter(f"{_GRAPHML}node"):
        number, data = node.get("id") or "", _data(node, keys)
        label = data.get("label") or number
        names[number] = label if label not in names.values() else f"{label}-{number}"
        if (where := _place(data)) is not None:
            places[number] = where
    made = _Builder()
    for name in names.values():
        made.node(name)
    for edge in graph.iter(f"{_GRAPHML}edge"):
        ends = edge.get("source"), edge.get("target")
        if ends[0] not in names or ends[1] not in names:
            raise GraphError(f"{source}: an edge from {ends[0]!r} to {ends[1]!r}, which are not both nodes")
        speed = _number(_data(edge, keys).get("LinkSpeedRaw"))
        apart = [places[end] for end in ends if end in places]
        delay = _kilometres(*apart) / KILOMETRES_A_SECOND if len(apart) == 2 else 0.0
        made.link(names[ends[0]], names[ends[1]], Impairment(delay=delay, bandwidth=speed or 0.0))
    return made.network(source)


def _data(element: ElementTree.Element, keys: dict[str | None, str | None]) -> dict[str, str]:
    found = ((keys.get(data.get("key")), data.text) for data in element.iter(f"{_GRAPHML}data"))
    return {name: text.strip() for name, text in found if name is not None and text}


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else None
    except ValueError:
        return None
    return value if value is not None and 0 <= abs(value) < float("inf") else None


def _place(data: dict[str, str]) -> tuple[float, float] | None:
    latitude, longitude = _number(data.get("Latitude")), _number(data.get("Longitude"))
    return None if latitude is None or longitude is None else (math.radians(latitude), math.radians(longitude))


def _kilometres(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Along the surface of the earth."""
    half = math.sin((one[0] - other[0]) / 2) ** 2
    half += math.cos(one[0]) * math.cos(other[0]) * math.sin((one[1] - other[1]) / 2) ** 2
    return 2 * EARTH_RADIUS * math.asin(math.sqrt(min(1.0, half)))


# Rocketfuel.


def read_rocketfuel_routers(text: str, source: str) -> ImportedNetwork:
    """Lines `uid @location ... -> <neighbour> ... {-external} ... =name`; those of other networks have negative ids."""
    made = _Builder()
    for line in text.splitlines():
        found = _CCH.match(line)
        if found is None or found[1].startswith("-"):
            continue
        for neighbour in _CCH_NEIGHBOURS.findall(line):
            made.link(f"r{found[1]}", f"r{neighbour}")
    return made.network(source)


def read_rocketfuel_links(text: str, source: str) -> ImportedNetwork:
    made = _Builder()
    in_milliseconds = Path(source).name.startswith("latenc")
    for line, words in _lines(text):
        if len(words) < 2:
            raise EdgeListError(source, line, "expected two names, and a weight or a delay")
        third = _number(words[2]) if len(words) > 2 else None
        if len(words) > 2 and third is None:
            raise EdgeListError(source, line, f"{words[2]!r} is no number")
        quality = Impairment(delay=third / 1000) if in_milliseconds and third is not None else None
        made.link(words[0], words[1], quality)
    return made.network(source)


# Mini-NDN.


def read_mini_ndn(text: str, source: str) -> ImportedNetwork:
    made = _Builder()
    section = ""
    for line, words in _lines(text):
        if words[0].startswith("["):
            section = words[0].strip("[]").lower()
        elif section == "nodes":
            made.node(words[0].rstrip(":").partition(":")[0])
        elif section == "links":
            one, colon, other = words[0].partition(":")
            if not (one and colon and other):
                raise EdgeListError(source, line, f"expected two nodes as in a:b, not {words[0]!r}")
            for name in (one, other):
                if name not in made.numbers:
                    raise EdgeListError(source, line, f"{name!r} is not among the [nodes]")
            made.link(one, other, _mini_ndn_quality(words[1:], source, line))
    return made.network(source)


def _mini_ndn_quality(words: Iterable[str], source: str, line: int) -> Impairment:
    delay = bandwidth = loss = 0.0
    queue = Impairment().queue_limit
    for word in words:
        name, _, value = word.partition("=")
        quantity = _QUANTITY.match(value)
        if quantity is None:
            raise EdgeListError(source, line, f"{word!r}: expected a number, as in delay=10ms")
        number = float(quantity[1])
        match name:
            case "delay":
                delay = number * _SECONDS[quantity[2]]
            case "bw":
                bandwidth = number * 1e6
            case "loss":
                loss = number / 100
            case "max_queue_size":
                queue = int(number)
    try:
        return Impairment(delay=delay, bandwidth=bandwidth, loss=loss, queue_limit=queue)
    except ValueError as error:
        raise EdgeListError(source, line, str(error)) from None


def _lines(text: str) -> Iterable[tuple[int, list[str]]]:
    """Lines that say something, with their numbers."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            yield number, words
