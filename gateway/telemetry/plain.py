"""Events as plain values, for logs and pages: a name, and fields that hold nothing secret.

Only fields of the kinds named here are taken over. A subscription is reduced to its number, topic and callback (its
secret never leaves the hub), and of a callback's address what may be a key (user, query, fragment) is left out.
"""

from dataclasses import fields, is_dataclass
from urllib.parse import urlsplit

from identifiers import Identifier, ItemId
from push_hub.model import HubSubscription

MAX_TEXT = 300

PlainValue = str | int | float | bool | None
Plain = dict[str, PlainValue]


def without_keys(url: str) -> str:
    """An address without what may be a password or a token: user, query and fragment."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "(not an address)"
    return f"{parts.scheme}://{host}{parts.path}{'?…' if parts.query or parts.fragment else ''}"


def plain(event: object) -> Plain:
    """An event's fields as text and numbers, without its name."""
    known: Plain = {}
    for name in _names(type(event)):
        value = getattr(event, name)
        match value:
            case HubSubscription():
                known |= {
                    "subscription": value.id,
                    "topic": value.topic[:MAX_TEXT],
                    "callback": without_keys(value.callback),
                }
            case ItemId():
                known |= {"sid": str(value.sid), "rid": str(value.rid)}
            case Identifier():
                known[name] = str(value)
            case str():
                known[name] = without_keys(value) if name == "callback" else value[:MAX_TEXT]
            case bool() | int() | float() | None:
                known[name] = value
            # Whatever else an event may carry one day is not for logs until somebody says how.
    return known


_known_names: dict[type, tuple[str, ...]] = {}
"""Fields by kind of event; there are as many kinds as classes."""


def _names(kind: type) -> tuple[str, ...]:
    names = _known_names.get(kind)
    if names is None:
        # The most frequent ones are named tuples, which cost less to make.
        of_tuple: tuple[str, ...] = getattr(kind, "_fields", ())
        names = _known_names[kind] = tuple(field.name for field in fields(kind)) if is_dataclass(kind) else of_tuple
    return names
