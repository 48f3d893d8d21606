"""`Naming`: the one function from names to ids, used by both ends of the network.

Two gateways meet only if they use the same scheme and the same hash, so a `Naming` can say which it is
(`announcement`) and compare itself with another's (`mismatch`).

| name | Sid seed | Rid seed |
|---|---|---|
| data channel, `fqdn-path` | host, with a non-default port | path and query without the leading `/` |
| data channel, `zone` | registrable domain | remaining labels, non-default port, path and query (`news/a`) |
| signalling channel of a zone | second-level label (`feedspsirp`) | `.` + public suffix (`.com`, `.co.uk`) |
| user@domain | domain | user |

`alice@example.org` and `http://example.org/alice` have the same ids under `fqdn-path`: that link is how the chat
names its people.
"""

import hashlib
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from publicsuffixlist import PublicSuffixList

from identifiers.identifier import IDENTIFIER_BYTES, Identifier, ItemId
from identifiers.topic import Topic, TopicError, canonical_host

MAX_USER_BYTES: Final = 1023  # as for an XMPP localpart
_FORBIDDEN_IN_USER: Final = frozenset("\"&'/:<>@\\")


class Scheme(StrEnum):
    """How a topic URL is divided into a scope and an item."""

    FQDN_PATH = "fqdn-path"
    ZONE = "zone"


class HashName(StrEnum):
    """Which hash turns a seed into an id."""

    SHA1 = "sha1"
    SHA256 = "sha256"


class NoZoneError(TopicError):
    """A host that belongs to no registrable domain: an address, a single label or a public suffix."""


@dataclass(frozen=True, slots=True)
class Zone:
    """A registrable domain, divided at its public suffix."""

    label: str
    suffix: str

    @property
    def domain(self) -> str:
        return f"{self.label}.{self.suffix}"


@dataclass(frozen=True, slots=True)
class Naming:
    """A scheme and a hash. Two `Naming`s give the same ids exactly when they are equal."""

    scheme: Scheme = Scheme.FQDN_PATH
    hash_name: HashName = HashName.SHA1

    def of_seed(self, seed: str) -> Identifier:
        """SHA-1 digests are 20 bytes and stand right-aligned after 12 zero bytes; SHA-256 fills all 32."""
        # SHA-1 names things here and protects nothing; who may publish is a matter of signatures.
        digest = hashlib.new(self.hash_name, seed.encode(), usedforsecurity=False).digest()
        return Identifier(digest.rjust(IDENTIFIER_BYTES, b"\0"))

    def of_topic(self, topic: Topic) -> ItemId:
        """The data channel of a topic."""
        sid_seed, rid_seed = self.seeds(topic)
        return ItemId(self.of_seed(sid_seed), self.of_seed(rid_seed))

    def seeds(self, topic: Topic) -> tuple[str, str]:
        """What is hashed into the Sid and the Rid of a topic's data channel."""
        if self.scheme is Scheme.FQDN_PATH:
            return topic.authority, topic.resource[1:]
        domain = zone_of(topic.host).domain
        below = topic.host.removesuffix(domain).removesuffix(".")
        port = "" if topic.port is None else f":{topic.port}"
        return domain, below + port + topic.resource

    def of_signalling(self, zone: Zone) -> ItemId:
        """The channel on which subscription requests for a zone travel; the same in both schemes."""
        return ItemId(self.of_seed(zone.label), self.of_seed(f".{zone.suffix}"))

    def of_user(self, address: str) -> ItemId:
        """The channel of `user@domain`."""
        user, domain = split_user(address)
        return ItemId(self.of_seed(domain), self.of_seed(user))

    @property
    def announcement(self) -> str:
        """What a gateway tells another about its naming."""
        return f"{self.scheme}/{self.hash_name}"

    def mismatch(self, announcement: str) -> str | None:
        """Why ids of the two sides would never meet, in words; None when they agree."""
        if announcement == self.announcement:
            return None
        return f"we name topics by {self.announcement!r}, the other side by {announcement!r}: their ids never match"


DEFAULT_NAMING: Final = Naming()


@lru_cache(maxsize=1)
def _suffixes() -> PublicSuffixList:
    # The list ships inside the library. Its private part counts too: alice.github.io and bob.github.io have
    # different owners, so they are different zones.
    return PublicSuffixList()


@lru_cache(maxsize=10_000)
def zone_of(host: str) -> Zone:
    """The registrable domain that a canonical host belongs to."""
    if host.startswith("[") or host.rpartition(".")[2].isdigit():
        raise NoZoneError(f"{host} is an address and belongs to no zone: use the scheme 'fqdn-path' for it")
    domain = _suffixes().privatesuffix(host)
    if domain is None:
        raise NoZoneError(f"{host!r} is not below a public suffix, so it belongs to no zone")
    label, _, suffix = domain.partition(".")
    return Zone(label, suffix)


def split_user(address: str) -> tuple[str, str]:
    """`User@Domain` as canonical (user, domain). The user is case-insensitive, as in XMPP."""
    user, separator, domain = address.rpartition("@")
    if not separator or not user or not domain:
        raise TopicError(f"{address[:80]!r} is not of the form user@domain")
    user = unicodedata.normalize("NFC", unicodedata.normalize("NFC", user).lower())
    wrong = next((c for c in user if c in _FORBIDDEN_IN_USER or c.isspace() or not c.isprintable()), None)
    if wrong is not None:
        raise TopicError(f"{wrong!r} may not stand in the user part of {address[:80]!r}")
    if len(user.encode()) > MAX_USER_BYTES:
        raise TopicError(f"the user part is longer than {MAX_USER_BYTES} bytes")
    return user, canonical_host(domain)
