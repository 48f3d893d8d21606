"""Namespaces: the kinds of names that people and protocols have for items, each read and shown in one way. Sans-I/O.

| namespace | a name | its item | rules look at |
|---|---|---|---|
| `url` | `http://host/path`, also https | `Naming.of_topic` | `host/path`, zone of the host |
| `user` | `user@domain` | `Naming.of_user` | `domain/user`, zone of the domain |
| | `user@domain/below` | one of its own | as above |
| `item` | `item:SID/RID`, `SID/RID` | itself | `item:SID/RID`, no zone |

A protocol with names of its own brings a namespace of its own: `STANDARD.plus(namespace)`.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from identifiers.identifier import PAIR_SEPARATOR, Identifier, IdentifierSyntaxError, ItemId
from identifiers.naming import Naming, split_user
from identifiers.topic import DEFAULT_PORTS, Topic, TopicError

ITEM_PREFIX: Final = "item:"
MAX_BELOW_CHARACTERS: Final = 200
_BARE_ITEM = re.compile(r"(?:[0-9A-Fa-f]{64}|[0-9A-Fa-f]*::[0-9A-Fa-f]*)/[0-9A-Fa-f:]*")


@dataclass(frozen=True, slots=True)
class Name:
    """A name as it was understood."""

    namespace: str
    shown: str
    """In the one form in which it is written."""
    item: Callable[[Naming], ItemId]
    host: str
    """Whose it is; empty when the name does not say."""
    place: str
    """Where it stands among others: what an operator's rules are about."""
    is_any: bool = False
    """It may be another spelling of a name from another namespace, and nobody can say of which."""
    others: tuple[str, ...] = ()
    """Further spellings, some of which may name the same item."""


class Namespace(Protocol):
    """One kind of names."""

    @property
    def label(self) -> str: ...

    def claims(self, text: str) -> bool:
        """Whether a text is meant to be one of these names, well spelled or not."""

    def read(self, text: str) -> Name:
        """Raises `TopicError`."""

    def pattern(self, text: str) -> str:
        """What a rule is about, as it is compared with places: all below it, if it ends in a slash. Raises
        `TopicError`."""


class UrlNamespace:
    """Both schemes are one name."""

    label = "url"

    def claims(self, text: str) -> bool:
        return "://" in text

    def read(self, text: str) -> Name:
        topic = Topic.parse(text)
        user, slash, below = topic.resource[1:].partition("/")
        others = (*(f"{scheme}://{topic.name}" for scheme in DEFAULT_PORTS), f"{user}@{topic.authority}{slash}{below}")
        return Name(self.label, topic.url, lambda naming: naming.of_topic(topic), topic.host, topic.name, others=others)

    def pattern(self, text: str) -> str:
        return Topic.parse(text).name


class UserNamespace:
    """What is below somebody's name, like their receipts, is theirs as the name itself is."""

    label = "user"

    def claims(self, text: str) -> bool:
        return "@" in text.partition("/")[0]

    def read(self, text: str) -> Name:
        address, slash, below = text.partition("/")
        user, domain = split_user(address)
        if slash and (not below.isprintable() or not 0 < len(below) <= MAX_BELOW_CHARACTERS):
            raise TopicError(f"what is below {address[:80]!r} has 1 to {MAX_BELOW_CHARACTERS} printable characters")
        seed = user + slash + below
        return Name(
            self.label,
            f"{user}@{domain}{slash}{below}",
            lambda naming: ItemId(naming.of_seed(domain), naming.of_seed(seed)),
            domain,
            f"{domain}/{user}",
            others=tuple(f"{scheme}://{domain}/{seed}" for scheme in DEFAULT_PORTS),
        )

    def pattern(self, text: str) -> str:
        return self.read(text).place


class ItemNamespace:
    """Items by their ids, whatever they are called."""

    label = "item"

    def claims(self, text: str) -> bool:
        return text.startswith(ITEM_PREFIX) or _BARE_ITEM.fullmatch(text) is not None

    def read(self, text: str) -> Name:
        try:
            item = ItemId.parse(text.removeprefix(ITEM_PREFIX))
        except IdentifierSyntaxError as error:
            raise TopicError(str(error)) from None
        shown = f"{ITEM_PREFIX}{item}"
        return Name(self.label, shown, lambda naming: item, "", shown, is_any=True)

    def pattern(self, text: str) -> str:
        if not text.endswith(PAIR_SEPARATOR):
            return self.read(text).place
        try:
            scope = Identifier.parse(text.removeprefix(ITEM_PREFIX).removesuffix(PAIR_SEPARATOR))
        except IdentifierSyntaxError as error:
            raise TopicError(str(error)) from None
        return f"{ITEM_PREFIX}{scope}{PAIR_SEPARATOR}"


class Namespaces:
    """Those that are known, in the order in which they are asked."""

    def __init__(self, namespaces: tuple[Namespace, ...]) -> None:
        labels = [namespace.label for namespace in namespaces]
        if len(set(labels)) < len(labels):
            raise ValueError(f"a namespace is there twice: {', '.join(labels)}")
        self._known = namespaces

    def plus(self, namespace: Namespace) -> "Namespaces":
        """With one more, which is asked first."""
        return Namespaces((namespace, *self._known))

    def __iter__(self) -> Iterator[Namespace]:
        return iter(self._known)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Namespaces) and self._known == other._known

    def __hash__(self) -> int:
        return hash(self._known)

    def of(self, text: str) -> Namespace | None:
        """Whose names these are; None for what no namespace knows."""
        return next((namespace for namespace in self._known if namespace.claims(text)), None)

    def read(self, text: str) -> Name:
        """Raises `TopicError`."""
        namespace = self.of(text)
        if namespace is None:
            labels = ", ".join(known.label for known in self._known)
            raise TopicError(f"{text[:80]!r} is no name of any kind that is known here ({labels})")
        return namespace.read(text)

    def spellings(self, name: Name, naming: Naming) -> tuple[str, ...]:
        """Every way to write the item that a name says, the name's own first."""
        item = name.item(naming)
        found = {name.shown: None}
        for text in (*name.others, f"{ITEM_PREFIX}{item}"):
            try:
                other = self.read(text)
            except TopicError:
                continue
            if other.item(naming) == item:
                found[other.shown] = None
        return tuple(found)


STANDARD: Final = Namespaces((UrlNamespace(), ItemNamespace(), UserNamespace()))
