"""When each node was observed: what the trace files of a process cover, and where there is a hole in them.

Before anything is called lost it must be known that its receiver was looked at. A process leaves files that follow each
other; where one is missing or cannot be read, nothing is known of its nodes between the files beside it. The same holds
while records were dropped, before what rotation removed, and outside of the life of the process.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perf.traces.files import READ, Inventory, InventoryFile
from perf.traces.formats import Format
from perf.traces.run import Run

EVER: Final = 1 << 62
_NUMBERED: Final = re.compile(r"^\.?(.*?)-?\d+(\.[a-z]+)+$")
_LINE: Final = 1 << 16
MOST_HOLES: Final = 1000
"""Of a node; of more, neighbouring ones are taken for one."""


@dataclass(frozen=True, slots=True)
class Hole:
    """From `begin_ns` to `end_ns` of wall time nothing is known of a node."""

    run: str
    node: str
    begin_ns: int
    end_ns: int
    why: str


@dataclass(frozen=True, slots=True)
class Observed:
    """What traces cover. `unseen` are processes of which there is no readable file at all: nobody knows their nodes."""

    holes: tuple[Hole, ...]
    unseen: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Content:
    nodes: frozenset[str]
    begin_ns: int
    end_ns: int


def find_coverage(inventory: Inventory, broken: Iterable[Path] = ()) -> Observed:
    """`broken` are files that turned out to be broken in the middle when they were read."""
    bad = frozenset(broken)
    by_process: dict[tuple[str, Path, str], list[InventoryFile]] = defaultdict(list)
    for file in inventory.files:
        by_process[file.run, file.path.parent, process_of(file.path)].append(file)
    parts = dict(zip(inventory.directories, inventory.parts, strict=True))
    covered: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    reasons: dict[tuple[str, str], list[tuple[int, int, str]]] = defaultdict(list)
    unseen = []
    for (run, folder, process), files in sorted(by_process.items()):
        part = parts[folder.parent]
        contents = {file.path: _content(file) for file in files if file.state in READ and file.path not in bad}
        known = {path: content for path, content in contents.items() if content is not None}
        if not known:
            if any(file.state in READ or file.rows is None for file in files):
                unseen.append(f"{run}: {process or folder.parent.name}")
            continue
        nodes = frozenset().union(*(content.nodes for content in known.values()))
        holes = list(_holes(files, known, part, process))
        for node in nodes:
            covered[run, node] += _without(holes)
            reasons[run, node] += holes
    found = []
    for (run, node), spans in sorted(covered.items()):
        for begin, end in _uncovered(spans):
            why = next((why for b, e, why in reasons[run, node] if b < end and begin < e), "not traced")
            found.append(Hole(run, node, begin, end, why))
    return Observed(tuple(found), tuple(unseen))


def process_of(path: Path) -> str:
    """Files of one process differ in their number only: `gate-0-x-trace-000001.parquet`."""
    match = _NUMBERED.match(path.name)
    return match[1] if match is not None else path.name


def _content(file: InventoryFile) -> _Content | None:
    """Which nodes a file tells of, and from when to when."""
    return _of_parquet(file.path) if file.form is Format.PARQUET else _of_lines(file.path)


def _of_parquet(path: Path) -> _Content | None:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.compute as pc  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    try:
        with pq.ParquetFile(path, read_dictionary=["node"]) as file:
            place = file.schema_arrow.get_field_index("wall_ns")
            groups = [file.metadata.row_group(number).column(place) for number in range(file.num_row_groups)]
            if groups and all(group.statistics is not None and group.statistics.has_min_max for group in groups):
                begin = min(group.statistics.min for group in groups)
                end = max(group.statistics.max for group in groups)
            else:
                times = file.read(columns=["wall_ns"])["wall_ns"]
                if not len(times):
                    return None
                begin, end = (getattr(pc, name)(times).as_py() for name in ("min", "max"))
            nodes = pc.unique(file.read(columns=["node"])["node"]).to_pylist()
    except (OSError, ValueError, pa.ArrowException):
        return None
    return _Content(frozenset(str(node) for node in nodes if node is not None), begin, end)


def _of_lines(path: Path) -> _Content | None:
    """Lines that are no record are counted elsewhere."""
    import msgspec

    class Line(msgspec.Struct):
        node: str
        wall_ns: int

    decoder = msgspec.json.Decoder(Line)
    nodes: set[str] = set()
    begin, end = EVER, -EVER
    with path.open("rb") as stream:
        while line := stream.readline(_LINE):
            try:
                record = decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
            nodes.add(record.node)
            begin, end = min(begin, record.wall_ns), max(end, record.wall_ns)
    return _Content(frozenset(nodes), begin, end) if nodes else None


def _holes(
    files: Sequence[InventoryFile], known: dict[Path, _Content], part: Run, process: str
) -> Iterable[tuple[int, int, str]]:
    """In the order of their numbers: a file that is not known leaves a hole between those beside it."""
    first = min(content.begin_ns for content in known.values())
    if part.removed:
        yield -EVER, first, "removed by rotation"
    else:
        yield -EVER, min(first, part.started_ns), "before the run"
    ordered = sorted(files, key=lambda file: file.path.name.lstrip("."))
    upto = -EVER
    missing: list[str] = []
    for file in ordered:
        content = known.get(file.path)
        if content is None:
            if _leaves_a_hole(file):
                missing.append(f"{file.path.name}: {file.state.value}")
            continue
        if missing:
            yield upto, content.begin_ns, missing[0]
            missing.clear()
        upto = max(upto, content.end_ns)
    if missing:
        yield upto, EVER, missing[0]
    elif part.ended_ns is None:
        yield upto, EVER, "after the last file"
    else:
        yield max(upto, part.ended_ns), EVER, "after the run"
    for gap in part.gaps:
        if gap.process in ("", process):
            yield gap.begin_ns, gap.end_ns, "records were dropped"


def _leaves_a_hole(file: InventoryFile) -> bool:
    from perf.traces.files import FileState

    return file.state not in (FileState.DUPLICATE, FileState.STRANGE)


def _without(holes: Iterable[tuple[int, int, str]]) -> list[tuple[int, int]]:
    """What is left of all time."""
    left, upto = [], -EVER
    for begin, end, _ in sorted(holes):
        if begin > upto:
            left.append((upto, begin))
        upto = max(upto, end)
    if upto < EVER:
        left.append((upto, EVER))
    return left


def _uncovered(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Of all time, what is in none of the spans."""
    holes, upto = [], -EVER
    for begin, end in sorted(spans):
        if begin > upto:
            holes.append((upto, begin))
        upto = max(upto, end)
    if upto < EVER:
        holes.append((upto, EVER))
    while len(holes) > MOST_HOLES:
        holes = [
            (holes[place][0], holes[min(place + 1, len(holes) - 1)][1]) for place in range(0, len(holes), 2)
        ]  # fmt: skip
    return holes
