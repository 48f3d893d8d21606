"""The sections of a configuration file, as those read them to whom they belong.

A section may belong to several: each declares a `Struct` with its own keys, and what nobody declares is an error.
"""

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from gateway.tls_section import TlsSection
from identifiers import TopicError
from identifiers.topic import canonical_host
from serving.tls import TlsError, TlsFiles, TlsPort
from storage.memory import MemoryBudget
from storage.private import PrivateFileError, read_secret_lines

S = TypeVar("S", bound=Struct)
ANY = "*"
MAX_PORT = 65_535
_AT = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<place>[^`]*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<field>[^`]*)`$")
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]*)`$")


class SectionError(ValueError):
    """A value that cannot be used, and its key."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(what)
        self.key = key
        self.what = what


class Sections:
    """Every method raises `SectionError`."""

    def __init__(self, document: Mapping[str, object], folder: Path, data: Path, domain: str | None) -> None:
        self._document = document
        self.folder = folder
        """Paths in the file are relative to this."""
        self.data = data
        """What must survive is kept below this."""
        self.domain = domain
        """The domain whose people are user@domain here."""
        self.memory = MemoryBudget()

    @property
    def has_web_port(self) -> bool:
        """Whether the port is open that protocols over HTTP share."""
        web = self._document.get("web")
        return isinstance(web, Mapping) and bool(web.get("listen"))

    def raw(self, name: str) -> dict[str, object] | None:
        """A whole section that somebody else reads; None when it is not there."""
        given = self._document.get(name)
        return None if given is None else decoded(given, dict[str, object], name)

    def read(self, name: str, kind: type[S]) -> S:
        """What a section says under the keys of `kind`."""
        given = self.raw(name) or {}
        own = set(kind.__struct_encode_fields__)
        return decoded({key: value for key, value in given.items() if key in own}, kind, name)

    # Values that many need.

    def path(self, name: str) -> Path:
        return self.folder / name

    def secrets(self, key: str, name: str | None) -> tuple[str, ...]:
        """The lines of a file that nobody else may read."""
        if name is None:
            return ()
        try:
            return read_secret_lines(self.folder / name)
        except PrivateFileError as error:
            raise SectionError(key, str(error)) from None

    def tls(self, key: str, section: TlsSection | None) -> TlsFiles | None:
        if section is None:
            return None
        files = TlsFiles(self.folder / section.certificate, self.folder / section.key, section.look_every)
        try:
            TlsPort(files)
        except TlsError as error:
            raise SectionError(key, str(error)) from None
        return files


def address(key: str, text: str) -> tuple[str, int]:
    """An address to listen at."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > MAX_PORT:
        raise SectionError(key, f"expected ADDRESS:PORT (port 0 for a free one), not {text[:80]!r}")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise SectionError(key, f"expected an IP address before the port, not {host[:80]!r}") from None
    return host, int(port)


def proxies(key: str, addresses: tuple[str, ...]) -> frozenset[str]:
    """Machines, or networks of them, whose word on their clients' addresses is believed."""
    found = set()
    for proxy in addresses:
        try:
            found.add(str(ipaddress.ip_network(proxy) if "/" in proxy else ipaddress.ip_address(proxy)))
        except ValueError:
            raise SectionError(
                key, f"expected IP addresses or networks such as 10.0.0.0/8, not {proxy[:80]!r}"
            ) from None
    return frozenset(found)


def host_name(key: str, given: str) -> str:
    """A host's name, or `*` for every name."""
    if given == ANY:
        return given
    try:
        return canonical_host(given)
    except TopicError as error:
        raise SectionError(key, f"{given[:80]!r} is no host name: {error}") from None


T = TypeVar("T")


def decoded(value: object, kind: type[T], place: str) -> T:
    """A part of the document as what it should be."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        key, what = place_of(str(error))
        if place and key and not key.startswith("["):
            place += "."
        raise SectionError(f"{place}{key}", what) from None


def place_of(message: str) -> tuple[str, str]:
    """Key and complaint of a message of msgspec's."""
    found = _AT.match(message)
    what, key = message, ""
    if found is not None:
        what, key = found["what"], (found["place"] or "").removeprefix(".")
    for pattern, text in ((_UNKNOWN, "there is no such key"), (_MISSING, "this key is missing")):
        field = pattern.match(what)
        if field is not None:
            return f"{key}.{field['field']}".removeprefix("."), text
    if not key and (found := re.match(r"^(.*?) - at `([^`$]+)`$", what)):  # a message that was cleaned up already
        what, key = found[1], found[2]
        return place_of(f"{what} - at `$.{key}`")
    return key, what[:1].lower() + what[1:]
