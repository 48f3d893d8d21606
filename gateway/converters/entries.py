"""What is new in a document, as messages: the entries of a feed that the one before did not have. Sans-I/O."""

import re
from collections.abc import Mapping
from xml.parsers import expat

from gateway.converters.readable import Readable
from push_hub.intake.feeds import Feed, FeedEntry, unseen
from push_hub.intake.plain import plain_feed

MAX_CHARACTERS = 8_000
"""Of one text."""
_TITLES = ("title",)
_TEXTS = ("content:encoded", "content", "description", "summary")
_NAMES = ("id", "guid")
_AUTHORS = ("name", "dc:creator", "author")
_TAKEN = {*_TITLES, *_TEXTS, *_NAMES, *_AUTHORS, "link"}
_CATEGORY = "category"
MAX_OTHERS = 64
MAX_OTHER_CHARACTERS = 500
_TAG = re.compile(r"<[^>]{0,1000}>")


def new_entries(body: bytes, content_type: str, before: bytes, before_type: str) -> list[Readable] | None:
    """Oldest first; None for what is no plain feed. `before` may be empty: then all are new."""
    feed = plain_feed(body, content_type)
    if feed is None:
        return None
    known = plain_feed(before, before_type) if before else None
    seen: Mapping[bytes, bytes] = {} if known is None else {entry.key: entry.digest for entry in known.entries}
    # Feeds have the newest first.
    return [_read(body, feed, entry) for entry in reversed(unseen(feed, seen))]


def _read(body: bytes, _: Feed, entry: FeedEntry) -> Readable:
    reader = _EntryReader()
    found = reader.read(body[entry.start : entry.end])

    def first(names: tuple[str, ...]) -> str:
        return next((found[name] for name in names if found.get(name)), "")

    text = _TAG.sub("", first(_TEXTS)).strip()
    title = first(_TITLES) or text.partition("\n")[0][:100] or found.get("link", "")
    name = first(_NAMES) or entry.key.hex()
    return Readable(title, text, first(_AUTHORS), found.get("link", ""), name, tuple(reader.others))


class _EntryReader:
    """The texts of one entry, which is plain: no namespaces to resolve, no entities to expand."""

    def __init__(self) -> None:
        self.others: list[tuple[str, str]] = []
        self._found: dict[str, str] = {}
        self._path: list[str] = []
        self._text: list[str] = []

    def read(self, entry: bytes) -> dict[str, str]:
        parser = expat.ParserCreate("utf-8")
        parser.StartElementHandler = self._started
        parser.EndElementHandler = self._ended
        parser.CharacterDataHandler = self._text.append
        parser.Parse(entry.strip(), True)
        return self._found

    def _started(self, name: str, attributes: dict[str, str]) -> None:
        self._path.append(name)
        self._text.clear()
        if name == "link" and attributes.get("rel", "alternate") == "alternate" and attributes.get("href"):
            self._found.setdefault("link", attributes["href"])
        if name == _CATEGORY and attributes.get("term"):
            self._other(name, attributes["term"])

    def _ended(self, name: str) -> None:
        text = "".join(self._text).strip()[:MAX_CHARACTERS]
        self._text.clear()
        self._path.pop()
        if name in _TAKEN and text:
            self._found.setdefault(name, text)
        elif text and len(self._path) == 1:
            self._other(name, text)

    def _other(self, name: str, text: str) -> None:
        if len(self.others) < MAX_OTHERS:
            self.others.append((name, text[:MAX_OTHER_CHARACTERS]))
