"""What a publication says to people: a title and a text. Sans-I/O.

A protocol whose messages have a form of their own says how they are read, and what of them is not for everybody.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from exchange.model import SELF, Draft, Profile

TITLE: Final = "title"
AUTHOR: Final = "author"
"""Attributes of publications."""
APART: Final = "."
"""What a protocol says to itself begins like this, and is for nobody to read."""
TITLE_CHARACTERS: Final = 100
TEXT_HINTS = ("text/", "application/json", "application/xml")
TEXT_ENDINGS = ("+xml", "+json")


@dataclass(frozen=True, slots=True)
class Readable:
    title: str
    text: str
    author: str = ""
    link: str = ""
    id: str = ""
    """What it calls itself, if it does."""
    others: tuple[tuple[str, str], ...] = ()
    """What else it says, by name: categories, times."""


Readers = Mapping[str, Callable[[bytes], Readable | None]]
"""By content type: what a message in it says; None: it is not for everybody."""


def is_for_everybody(draft: Draft, readers: Readers) -> bool:
    """Whether somebody who only knows the name may see it."""
    read = _reader(draft, readers)
    return read is None or read(draft.body) is not None


def readable_of(draft: Draft, readers: Readers) -> Readable | None:
    """What a publication says; None for what is not for everybody."""
    read = _reader(draft, readers)
    if read is not None:
        return read(draft.body)
    text = text_of(draft)
    hidden = (SELF, TITLE, AUTHOR)
    lines = [f"{key}: {value}" for key, value in draft.attributes if key not in hidden and key[:1] != APART]
    said = "\n".join((*lines, text) if text else lines)
    title = draft.attribute(TITLE) or said.strip().partition("\n")[0][:TITLE_CHARACTERS]
    title = title or f"{len(draft.body)} bytes of {draft.content_type}"
    return Readable(title, said, draft.attribute(AUTHOR), draft.attribute(SELF))


def _reader(draft: Draft, readers: Readers) -> Callable[[bytes], Readable | None] | None:
    return readers.get(essence(draft.content_type)) if draft.profile is Profile.MESSAGE else None


def text_of(draft: Draft) -> str | None:
    """The body as text, if that is what it is."""
    try:
        return draft.body.decode() if is_text(draft.content_type) else None
    except UnicodeDecodeError:
        return None


def is_text(content_type: str) -> bool:
    """A document that is not declared as text may decode by accident; its reader wants bytes."""
    kind, _, parameters = content_type.lower().partition(";")
    kind = kind.strip()
    charset = parameters.partition("charset=")[2].strip(' "')
    if charset and not charset.startswith(("utf-8", "us-ascii")):
        return False
    return kind.startswith(TEXT_HINTS) or kind.endswith(TEXT_ENDINGS)


def essence(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()
