"""What can be selected by: the attributes that a publication says it has, what it is, and the fields of a JSON object.
Sans-I/O.

    {"city": "Turku", "wind": {"speed": 7}}  ->  city = Turku, wind.speed = 7

A field of an object in an object is named by both with a dot; the values of a list are the values of one attribute.
What a publication says of itself goes before a field of the same name. Names of this module's own begin with @.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from exchange.model import Draft
from exchange.selection.selector import Attributes

NAME: Final = "@name"
TYPE: Final = "@type"
PROFILE: Final = "@profile"
MAX_FIELDS: Final = 256
MAX_DEPTH: Final = 4
MAX_JSON_BYTES: Final = 64 * 1024
MAX_VALUE: Final = 4096
"""Characters of a value that are looked at."""


def attributes_of(draft: Draft) -> Attributes:
    found: dict[str, list[str]] = {
        NAME: [draft.name],
        TYPE: [_essence(draft.content_type)],
        PROFILE: [str(draft.profile)],
    }
    for name, value in draft.attributes[:MAX_FIELDS]:
        found.setdefault(name, []).append(value[:MAX_VALUE])
    own = frozenset(found)
    if _is_json(found[TYPE][0]) and len(draft.body) <= MAX_JSON_BYTES:
        try:
            body = msgspec.json.decode(draft.body)
        except (msgspec.DecodeError, RecursionError):
            return found
        for number, (name, value) in enumerate(_fields(body)):
            if number == MAX_FIELDS:
                break
            if name not in own:
                found.setdefault(name, []).append(value)
    return found


def _fields(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        if depth < MAX_DEPTH:
            for key, one in value.items():
                yield from _fields(one, f"{name}.{key}" if name else key, depth + 1)
    elif isinstance(value, list):
        for one in value:
            if not isinstance(one, list):
                yield from _fields(one, name, depth)
    elif name and value is not None:
        yield name, _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)[:MAX_VALUE]


def _essence(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _is_json(essence: str) -> bool:
    return essence == "application/json" or essence.endswith("+json")
