"""docs/configuration.md lists exactly the keys that there are."""

import types
import typing
from pathlib import Path

import msgspec

from gateway.config import check, sections_of
from gateway.config_reference import keys, reference
from gateway.protocols.listed import BUILT_IN
from psirp_stack.node.config import NodeFile

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"


def structs_in(kind: object) -> list[type[msgspec.Struct]]:
    """The sections that a field's type holds: itself, in a union, or in a list."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [kind]
    if typing.get_origin(kind) in (types.UnionType, typing.Union, tuple):
        return [struct for part in typing.get_args(kind) for struct in structs_in(part)]
    return []


def paths(struct: type[msgspec.Struct], before: str = "") -> set[str]:
    found: set[str] = set()
    hints = typing.get_type_hints(struct)
    for field in msgspec.structs.fields(struct):
        path = f"{before}{field.name}"
        if path == "node.links.impaired":  # written as one value
            found.add(path)
        elif path in ("node.socket", "node.memory_mb"):  # refused: a gateway and its own node have one store and budget
            continue
        elif inside := structs_in(hints[field.name]):
            for each in inside:
                found |= paths(each, f"{path}.")
        else:
            found.add(path)
    return found


def test_the_tables_hold_exactly_the_keys_of_the_program() -> None:
    _, listed = keys()
    declared = paths(NodeFile, "node.")
    for section, kinds in sections_of(BUILT_IN).items():
        declared |= {path for kind in kinds if kind is not None for path in paths(kind, f"{section}.")}
    assert {key.path for key in listed} == declared
    assert len(listed) == len({key.path for key in listed})


def test_the_document_holds_the_tables() -> None:
    assert reference() in DOCUMENT.read_text(), "psph config reference prints what belongs there"


def test_the_smallest_example_of_the_document_can_be_used(tmp_path: Path) -> None:
    secret = tmp_path / "keys" / "domain.secret"
    secret.parent.mkdir()
    secret.touch(mode=0o600)
    secret.write_text("what the domain knows")
    domain = {"secret_file": "keys/domain.secret"}
    assert 'domain = { secret_file = "keys/domain.secret" }' in DOCUMENT.read_text()
    node = {"name": "gate-a", "domain": domain, "links": [{"udp": "0.0.0.0:4000", "peer": "192.0.2.2:4000"}]}
    assert 'links = [{ udp = "0.0.0.0:4000", peer = "192.0.2.2:4000" }]' in DOCUMENT.read_text()
    assert check({"node": node}, tmp_path).network.node is not None
