"""Rows of the engine's tables to values and back."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from exchange.model import Draft, LogEntry, OriginId, Profile, unpack_origins
from identifiers import Identifier, ItemId

ENTRY_COLUMNS = (
    "position, item, gateway, number, via, name, profile, content_type, attributes, known, published_ms, deadline_ms, "
    "appended_ms, body"
)


def item_from(packed: bytes) -> ItemId:
    half = len(packed) // 2
    return ItemId(Identifier(packed[:half]), Identifier(packed[half:]))


@lru_cache(maxsize=1_000)
def attributes_to(attributes: tuple[tuple[str, str], ...]) -> str:
    return json.dumps(attributes, separators=(",", ":")) if attributes else ""


def attributes_from(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(value)) for name, value in json.loads(text)) if text else ()


def entry_from(row: Sequence[Any]) -> LogEntry:
    position, item, gateway, number, via, name, profile, content_type, attributes, known = row[:10]
    published_ms, deadline_ms, appended_ms, body = row[10:]
    origin = OriginId(gateway, number)
    draft = Draft(
        item_from(item),
        name,
        Profile(profile),
        content_type,
        body,
        attributes_from(attributes),
        published_ms,
        deadline_ms,
        origin,
        unpack_origins(known),
    )
    return LogEntry(position, origin, via, draft, appended_ms)
