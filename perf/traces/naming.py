"""What a publication is called in traces: the same at every node it visits, whoever asks and in whichever domain.

The name follows from the item (Sid and Rid of its topic) and the document, so that two gateways, the nodes between
them and a load generator agree without telling each other anything, and an operator learns no content from it.
"""

from collections.abc import Callable
from hashlib import blake2b
from struct import Struct
from typing import Final

from identifiers import ItemId, Naming, Topic, TopicError

NAME_BYTES: Final = 12
REMEMBERED_ITEMS: Final = 10_000
_LENGTH: Final = Struct("!I")

ItemOf = Callable[[str], ItemId | None]
"""The item of a topic; None for what cannot cross."""


def publication_name(item: ItemId, document: bytes) -> str:
    digest = blake2b(bytes(item.sid) + bytes(item.rid), digest_size=NAME_BYTES)
    digest.update(document)
    return digest.hexdigest()


def document_in(content: bytes) -> bytes:
    """The document in what gateways send each other: behind a header, whose length is in the first four bytes."""
    if len(content) < _LENGTH.size:
        return content
    end = _LENGTH.size + int(_LENGTH.unpack_from(content)[0])
    return content[end:] if end <= len(content) else content


def name_of_version(item: ItemId, content: bytes) -> str:
    return publication_name(item, document_in(content))


def items_of(naming: Naming) -> ItemOf:
    """Remembers a bounded number of topics: a name is asked for at every publication."""
    known: dict[str, ItemId | None] = {}

    def item_of(topic: str) -> ItemId | None:
        if topic not in known:
            if len(known) >= REMEMBERED_ITEMS:
                known.clear()
            try:
                known[topic] = naming.of_topic(Topic.parse(topic))
            except TopicError:
                known[topic] = None
        return known[topic]

    return item_of
