"""What a forwarding node is told when it starts, as one typed value, read from a JSON document.

    {"links": {"1": {"ethernet": "veth0", "tags": [HEX, ...]},
               "2": {"udp_fd": 5, "peer": ["127.0.0.1", 4000], "tags": [HEX, ...], "impairment": "loss=0.01"}},
     "incoming": {"1": [HEX, ...]}, "internal": [HEX, ...], "tap": "/run/psph/node.tap"}

Tags are hex numbers, one for each of the eight tables. `incoming`, `impairment` and `tap` may be left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from psirp_stack.forwarding_model import FILTER_BITS, TABLES, ForwardingTable, LinkNumber, Tags
from psirp_stack.links.impairment import Impairment, impairment_from_text
from psirp_stack.links.udp import UdpAddress


class ConfigurationError(ValueError):
    """A configuration that cannot be used: says where, what is there and what was expected."""


@dataclass(frozen=True, slots=True)
class EthernetCarrier:
    interface: str


@dataclass(frozen=True, slots=True)
class UdpCarrier:
    descriptor: int
    """A bound socket that the process inherited."""
    peer: UdpAddress


@dataclass(frozen=True, slots=True)
class LinkConfiguration:
    carrier: EthernetCarrier | UdpCarrier
    tags: Tags
    impairment: Impairment = field(default_factory=Impairment)


@dataclass(frozen=True, slots=True)
class NodeConfiguration:
    links: Mapping[LinkNumber, LinkConfiguration]
    internal: Tags
    incoming: Mapping[LinkNumber, Tags] = field(default_factory=dict)
    tap: Path | None = None
    """Where a capture may listen to all links."""

    @property
    def table(self) -> ForwardingTable:
        return ForwardingTable({number: link.tags for number, link in self.links.items()}, self.internal, self.incoming)


def configuration_of(document: object) -> NodeConfiguration:
    """Check a document from `json.loads` and make a configuration of it."""
    given = _object(document, "the configuration", {"links", "internal"}, {"incoming", "tap"})
    tap = given.get("tap")
    if tap is not None and not isinstance(tap, str):
        raise ConfigurationError(f"tap is {tap!r}: expected a path")
    return NodeConfiguration(
        links={number: _link(link, f"link {number}") for number, link in _by_number(given["links"], "links")},
        internal=_tags(given["internal"], "internal"),
        incoming={
            number: _tags(tags, f"incoming {number}") for number, tags in _by_number(given.get("incoming"), "incoming")
        },
        tap=None if tap is None else Path(tap),
    )


def _link(document: object, where: str) -> LinkConfiguration:
    given = _object(document, where, {"tags"}, {"ethernet", "udp_fd", "peer", "impairment"})
    match given:
        case {"ethernet": str(interface)} if not given.keys() & {"udp_fd", "peer"}:
            carrier: EthernetCarrier | UdpCarrier = EthernetCarrier(interface)
        case {"udp_fd": int(descriptor), "peer": [str(host), int(port)]} if "ethernet" not in given:
            try:
                carrier = UdpCarrier(descriptor, UdpAddress(host, port))
            except ValueError as error:
                raise ConfigurationError(f"{where}: {error}") from None
        case _:
            raise ConfigurationError(f'{where}: expected "ethernet": NAME, or "udp_fd": NUMBER and "peer": [IP, PORT]')
    impairment = given.get("impairment", "")
    try:
        return LinkConfiguration(carrier, _tags(given["tags"], where), impairment_from_text(str(impairment)))
    except ConfigurationError:
        raise
    except ValueError as error:
        raise ConfigurationError(f"{where}: {error}") from None


def _object(document: object, where: str, needed: set[str], optional: set[str]) -> dict[str, object]:
    if not isinstance(document, dict):
        raise ConfigurationError(f"{where} is {type(document).__name__}: expected an object")
    missing, unknown = needed - document.keys(), document.keys() - needed - optional
    if missing or unknown:
        wrong = [f"lacks {name!r}" for name in sorted(missing)] + [f"has {name!r}" for name in sorted(unknown)]
        raise ConfigurationError(f"{where} {', '.join(wrong)}: expected {', '.join(sorted(needed | optional))}")
    return document


def _by_number(document: object, where: str) -> list[tuple[LinkNumber, object]]:
    if document is None:
        return []
    if not isinstance(document, dict) or not all(number.isascii() and number.isdigit() for number in document):
        raise ConfigurationError(f"{where}: expected an object with link numbers as keys")
    return [(int(number), value) for number, value in document.items()]


def _tags(document: object, where: str) -> Tags:
    try:
        if isinstance(document, list) and len(document) == TABLES:
            tags = tuple(int(tag, 16) for tag in document)
            if all(0 <= tag < 1 << FILTER_BITS for tag in tags):
                return tags
    except (TypeError, ValueError):
        pass
    raise ConfigurationError(f"{where}: expected a list of {TABLES} tags, hex numbers of at most {FILTER_BITS} bits")
