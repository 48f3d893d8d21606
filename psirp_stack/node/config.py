"""A node's configuration: one typed TOML file, checked whole before anything starts.

name = "gate-a"
roles = ["rendezvous", "topology"]     # every node forwards
data = "var/gate-a"                    # without it nothing survives a restart
socket = "var/gate-a/node.sock"        # where applications attach

[domain]
seed = "example network"               # link tags follow from it: the same at every node
secret_file = "domain.secret"          # who does not know it is not let in; `psph keys setup` makes one
# open = true                          # instead: anybody may join, listen and speak
rendezvous = ["gate-a"]                # nobody else is believed to be rendezvous
topology = ["gate-a"]                  # or topology manager

[[links]]
udp = "127.0.0.1:4001"                 # listen here
peer = "127.0.0.1:4002"                # and talk to nobody else

[[links]]
ethernet = "veth0"
"""

import ipaddress
import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from psirp_stack.control.messages import Name
from psirp_stack.pull.cache import StrategyError, strategy_named
from psirp_stack.sealing.keys import MIN_SECRET_BYTES
from storage.memory import LEAST_MIB
from storage.private import PrivateFileError, read_secret_file

MAX_FILE_BYTES = 1024 * 1024
MAX_SECRET_BYTES = 1024
MAX_ROLE_HOLDERS = 64
OPEN_DOMAIN = "the domain is open: whoever reaches a link can join, read and forge (domain.open = true, and no secret)"

Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
Seconds = Annotated[float, Meta(ge=0.0, le=3600.0)]


class NodeConfigError(ValueError):
    """A configuration that cannot be used; the message names the file and the key."""


class NodeRole(StrEnum):
    """What a node does beside forwarding."""

    RENDEZVOUS = "rendezvous"
    TOPOLOGY = "topology"


class ImpairmentFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A link made worse on purpose, at its sending end."""

    delay: Seconds = 0.0
    jitter: Seconds = 0.0
    loss: Fraction = 0.0
    duplication: Fraction = 0.0
    reorder: Fraction = 0.0
    bandwidth: Annotated[float, Meta(ge=0.0)] = 0.0
    """Bits a second; 0 for no limit."""
    queue: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    """Frames that may wait."""
    seed: int = 1


class LinkFile(Struct, frozen=True, forbid_unknown_fields=True):
    """One link: `udp` and `peer`, or `ethernet`."""

    udp: str | None = None
    peer: str | None = None
    ethernet: Annotated[str, Meta(min_length=1, max_length=15)] | None = None
    mtu: Annotated[int, Meta(ge=576, le=65_000)] | None = None
    """Of a UDP link; 1472 when not given. An Ethernet interface says its own."""
    impaired: ImpairmentFile | None = None

    def udp_ends(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """The listening address and the peer's."""
        return _address(self.udp or ""), _address(self.peer or "")

    @property
    def leaves_the_machine(self) -> bool:
        """Whether anybody but programs of this machine may be on the wire."""
        if self.ethernet is not None:
            return True
        return not all(ipaddress.ip_address(host).is_loopback for host, _ in self.udp_ends())


class DomainFile(Struct, frozen=True, forbid_unknown_fields=True):
    """What all nodes of a domain have in common."""

    seed: Annotated[str, Meta(min_length=1, max_length=256)] = "psph"
    secret_file: str | None = None
    open: bool = False
    """Without a secret: let anybody in who reaches a link. Asked for by name, so that it never happens by oversight."""
    graph_file: str | None = None
    """An edge list: tags are then chosen over this graph instead of drawn by chance."""
    rendezvous: Annotated[tuple[Name, ...], Meta(max_length=MAX_ROLE_HOLDERS)] = ()
    """Nodes that are believed to be rendezvous."""
    topology: Annotated[tuple[Name, ...], Meta(max_length=MAX_ROLE_HOLDERS)] = ()
    """Nodes that are believed to be topology manager."""
    key: str | None = None
    """The domain's public key: who shows a grant that is signed with it is believed too."""


class KeysFile(Struct, frozen=True, forbid_unknown_fields=True):
    """Signatures: what this node signs with, and whose signatures it knows."""

    signing: str | None = None
    trusted: str | None = None
    require_signatures: bool = False
    """Hand up only publications that a known key has signed, also in open scopes."""
    grant: str | None = None
    """The grant of this node's roles, as `psph keys grant` makes it; it names the signing key."""


class TimesFile(Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds."""

    hello: Annotated[float, Meta(ge=0.01, le=60.0)] = 0.3
    lease: Annotated[float, Meta(ge=0.5, le=3600.0)] = 30.0


class RetentionFile(Struct, frozen=True, forbid_unknown_fields=True):
    """How much of each item's past is kept for those who come late."""

    count: Annotated[int, Meta(ge=1)] = 1024
    bytes: Annotated[int, Meta(ge=0)] = 32 * 1024 * 1024
    age: Annotated[float, Meta(ge=0.0)] = 3600.0


class CacheFile(Struct, frozen=True, forbid_unknown_fields=True):
    """Memory for versions of others that pass by this node."""

    bytes: Annotated[int, Meta(ge=0)] = 0
    """0: keep none."""
    strategy: Annotated[str, Meta(max_length=200)] = "everywhere"
    """`everywhere`, `sometimes`, `sometimes SHARE`, or `module:function` for one of your own."""


class NodeFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    name: Name
    roles: tuple[NodeRole, ...] = ()
    data: str | None = None
    socket: str | None = None
    memory_mb: Annotated[int, Meta(ge=LEAST_MIB)] | None = None
    """What caches, queues and publications in pieces may take together, beside the program itself."""
    domain: DomainFile = DomainFile()
    links: tuple[LinkFile, ...] = ()
    keys: KeysFile = KeysFile()
    times: TimesFile = TimesFile()
    retention: RetentionFile = RetentionFile()
    cache: CacheFile = CacheFile()


def load(path: Path) -> NodeFile:
    """Read and check a file; paths in it are relative to the file."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise NodeConfigError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NodeConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise NodeConfigError(f"{path}: not TOML: {error}") from None
    return check(document, str(path))


def check(document: dict[str, object], source: str = "configuration") -> NodeFile:
    """A document as a configuration; the error says which key is wrong and what was expected."""
    try:
        file = msgspec.convert(document, NodeFile)
    except msgspec.ValidationError as error:
        raise NodeConfigError(f"{source}: {_with_key(str(error))}") from None
    if file.keys.grant is not None and file.keys.signing is None:
        raise NodeConfigError(f"{source}: `keys.grant` needs `keys.signing`, the key that the grant names")
    try:
        strategy_named(file.cache.strategy)
    except StrategyError as error:
        raise NodeConfigError(f"{source}: `cache.strategy`: {error}") from None
    domain = file.domain
    if (domain.rendezvous or domain.topology or domain.key) and file.keys.grant is None:
        for role in file.roles:
            if file.name not in (domain.rendezvous if role is NodeRole.RENDEZVOUS else domain.topology):
                raise NodeConfigError(
                    f"{source}: roles: nobody would believe that {file.name!r} is {role}: expected its name in"
                    f" `domain.{role}`, or a grant in `keys.grant`"
                )
    for number, link in enumerate(file.links, start=1):
        where = f"{source}: links, entry {number}"
        if (link.udp is None) == (link.ethernet is None):
            raise NodeConfigError(f"{where}: expected either `udp` and `peer`, or `ethernet`")
        if link.udp is not None:
            if link.peer is None:
                raise NodeConfigError(f"{where}: `udp` needs a `peer` to talk to")
            try:
                link.udp_ends()
            except ValueError as error:
                raise NodeConfigError(f"{where}: {error}") from None
    try:
        check_protection(file)
    except NodeConfigError as error:
        raise NodeConfigError(f"{source}: {error}") from None
    return file


def check_protection(file: NodeFile) -> None:
    """Refuse a node that would let strangers in without being told to."""
    domain = file.domain
    if domain.open and domain.secret_file is not None:
        raise NodeConfigError("a domain with a secret_file is not open: leave out one of the two - at `domain.open`")
    if unprotected_links(file) and not domain.open:
        raise NodeConfigError(
            "a link leaves this machine and anybody there could join the network: make a secret (psph keys setup) and "
            "name it, or say open = true if anybody may - at `domain.secret_file`"
        )


def unprotected_links(file: NodeFile) -> list[LinkFile]:
    """Links on which strangers can speak."""
    return [link for link in file.links if file.domain.secret_file is None and link.leaves_the_machine]


def read_secret(path: Path) -> bytes:
    """A domain's secret. Others must not be able to read it."""
    try:
        secret = read_secret_file(path).strip()
    except PrivateFileError as error:
        raise NodeConfigError(str(error)) from None
    if not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
        raise NodeConfigError(f"{path}: a secret has {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes, not {len(secret)}")
    return secret


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdigit() or not 0 <= int(port) <= 65_535:
        raise ValueError(f"expected ADDRESS:PORT, not {text!r}")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(f"expected an IP address before the port, not {host!r}") from None
    return host, int(port)


def _with_key(message: str) -> str:
    """msgspec writes places as `$.links[0].mtu`; people read `links[0].mtu`."""
    return message.replace("`$.", "`").replace(" - at `$`", "")
