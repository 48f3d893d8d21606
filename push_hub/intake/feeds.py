"""Where the entries of a feed are: Atom and RSS 0.9x, 1.0 and 2.0, worked on as bytes.

One expat pass finds where each entry begins and ends in the original bytes, what identifies it, and the hints
about polling. Leaving out the entries that were seen before is then a matter of cutting byte ranges, so
everything else, `atom:id` and the encoding included, stays exactly as the publisher wrote it.

Who an entry is and what it says is decided here, by its own elements; `entries` has feedparser confirm it. The digest
covers elements, attributes and text, not how they are spelled: quotes, CDATA, character references, comments and
indentation may change without the entry being another.

An entry's range takes the white space before it along. What remains when all entries are cut is the frame:
it is the same whether entries come or go, and another when the publisher changed something around them (H42).
RSS 1.0 lists its items once more in the channel (`rdf:li`): what is listed for an item goes and stays with it.

Names are compared without regard to namespace declarations (an entry has the prefix of its root), because feeds
with undeclared prefixes are common and otherwise sound. Documents that expat refuses are for feedparser alone.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from html.entities import name2codepoint
from xml.parsers import expat

from push_hub.xmlguard import MAX_DEPTH, UnsafeXmlError, Width, check_prolog, guarded_parser, width_of

MAX_ENTRIES = 20_000
MAX_ATTRIBUTES = 256
"""Of one element. feedparser's time grows with their square: ten thousand in 99 kB took it two seconds."""
MAX_TEXT = 4096
"""Of an entry's identifying texts, this many characters count."""

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_CHARSET = re.compile(r""";\s*charset\s*=\s*["']?([A-Za-z0-9_.:-]{1,40})""", re.IGNORECASE)


class NotAFeedError(Exception):
    """The document is no feed this module can take apart; `malformed` when another parser may still read it."""

    def __init__(self, reason: str, malformed: bool) -> None:
        super().__init__(reason)
        self.malformed = malformed


class FeedKind(StrEnum):
    ATOM = "atom"
    RSS = "rss"
    RDF = "rdf"


@dataclass(frozen=True, slots=True)
class FeedEntry:
    """One entry: who it is, what it says, and its bytes `start:end` in the document (-1 when not known)."""

    key: bytes
    digest: bytes
    start: int = -1
    end: int = -1
    id: str = ""
    """What the entry calls itself (id, guid or rdf:about), when it does."""
    listed_from: int = -1
    """Where the channel lists it: `rdf:li` of RSS 1.0 (-1 when it does not)."""
    listed_to: int = -1


@dataclass(frozen=True, slots=True)
class PollHints:
    """What the publisher says about how often to look (RSS ttl, skipHours, skipDays; hours in UTC, Monday = 0)."""

    ttl: float | None = None
    skip_hours: frozenset[int] = frozenset()
    skip_days: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Feed:
    entries: Sequence[FeedEntry]
    frame: bytes
    """Digest of everything around the entries."""
    cuttable: bool
    hints: PollHints = field(default_factory=PollHints)


def read_feed(body: bytes, content_type: str = "") -> Feed:
    """Take a well-formed feed apart. Raises `UnsafeXmlError` or `NotAFeedError`, nothing else."""
    check_prolog(body)
    charset = _CHARSET.search(content_type)
    if charset is not None and width_of(body) is Width.BYTE:
        # The header outranks the declaration (RFC 7303), but servers guess: the declaration gets its turn too.
        try:
            return ExactReader(body, charset[1]).read()
        except NotAFeedError:
            pass
    return ExactReader(body, None).read()


def unseen(feed: Feed, seen: Mapping[bytes, bytes]) -> list[FeedEntry]:
    """The entries that are new, or say something else than when they were seen."""
    return [entry for entry in feed.entries if seen.get(entry.key) != entry.digest]


def reduce_to(body: bytes, feed: Feed, keep: Sequence[FeedEntry]) -> bytes | None:
    """The document with only these entries, byte for byte as it was; None when the format was not cuttable."""
    if not feed.cuttable:
        return None
    kept = {entry.start for entry in keep}
    return _without(body, [entry for entry in feed.entries if entry.start not in kept])


def _without(body: bytes, cut: Sequence[FeedEntry]) -> bytes:
    pieces: list[bytes] = []
    at = 0
    ranges = [(entry.start, entry.end) for entry in cut]
    ranges += [(entry.listed_from, entry.listed_to) for entry in cut if entry.listed_from >= 0]
    for start, end in sorted(ranges):
        pieces.append(body[at:start])
        at = end
    pieces.append(body[at:])
    return b"".join(pieces)


def entry_key(kind: str, text: str) -> bytes:
    return hashlib.sha256(f"{kind} {text}".encode("utf-8", "surrogatepass")).digest()


def told_apart(entries: Sequence[FeedEntry]) -> list[FeedEntry]:
    """Entries that wrongly share an identifier are identified by their content as well."""
    count = Counter(entry.key for entry in entries)
    return [
        entry if count[entry.key] == 1 else replace(entry, key=hashlib.sha256(entry.key + entry.digest).digest())
        for entry in entries
    ]


class ExactReader:
    """The handlers of one expat pass."""

    def __init__(self, body: bytes, encoding: str | None) -> None:
        self._body = body
        self._width = width_of(body)
        self._parser = guarded_parser(encoding)
        self._parser.StartElementHandler = self._started
        self._parser.EndElementHandler = self._ended
        self._parser.CharacterDataHandler = self._text
        self._parser.SkippedEntityHandler = self._skipped
        self._parser.buffer_text = True
        self._said = hashlib.sha256()
        self._text_so_far: list[str] = []
        """Of the entry, since its last tag: expat tells it in pieces."""
        self._path: list[str] = []
        self._kind: FeedKind | None = None
        self._prefix = ""
        self._entry_depth = 0
        self._start = 0
        self._found: dict[str, str] = {}
        self._collecting: str | None = None
        self._collecting_depth = 0
        self._collected: list[str] = []
        self._room = 0
        self._entries: list[FeedEntry] = []
        self._abouts: list[str] = []
        """Of each entry of RSS 1.0, or empty."""
        self._listed: dict[str, tuple[int, int]] = {}
        """Where the channel of RSS 1.0 lists a name, the first time."""
        self._listing: tuple[str, int, int] | None = None
        """Name, beginning and depth of the `rdf:li` that is read."""
        self._ttl: float | None = None
        self._skip_hours: set[int] = set()
        self._skip_days: set[int] = set()

    def read(self) -> Feed:
        try:
            self._parser.Parse(self._body, True)
        except expat.ExpatError as error:
            raise NotAFeedError(f"not well-formed XML: {error}", malformed=True) from None
        except (ValueError, LookupError) as error:  # an encoding Python or expat does not know
            raise NotAFeedError(f"unreadable encoding: {error}", malformed=True) from None
        entries = told_apart(self._with_listings())
        return Feed(
            entries,
            hashlib.sha256(_without(self._body, entries)).digest(),
            True,
            PollHints(self._ttl, frozenset(self._skip_hours), frozenset(self._skip_days)),
        )

    def _with_listings(self) -> list[FeedEntry]:
        if not self._listed:
            return self._entries
        found = []
        for entry, about in zip(self._entries, self._abouts, strict=True):
            start, end = self._listed.pop(about, (-1, -1))
            found.append(replace(entry, listed_from=start, listed_to=end))
        return found

    def _started(self, name: str, attributes: Mapping[str, str]) -> None:
        self._path.append(name)
        depth = len(self._path)
        if depth > MAX_DEPTH:
            raise UnsafeXmlError(f"elements are nested deeper than {MAX_DEPTH}")
        if len(attributes) > MAX_ATTRIBUTES:
            raise NotAFeedError(f"an element with more than {MAX_ATTRIBUTES} attributes", malformed=False)
        if depth == 1:
            self._root(name)
        elif self._entry_depth:
            self._say_start(name, attributes)
            if depth == self._entry_depth + 1:
                self._in_entry(name, attributes)
        elif self._is_entry(name, depth):
            if len(self._entries) >= MAX_ENTRIES:
                raise NotAFeedError(f"more than {MAX_ENTRIES} entries", malformed=False)
            self._entry_depth = depth
            self._start = self._parser.CurrentByteIndex
            self._found = {}
            self._said = hashlib.sha256()
            self._say_start(name, attributes)
            about = attributes.get("rdf:about")
            if self._kind is FeedKind.RDF and about:
                self._found["about"] = about[:MAX_TEXT]
        elif depth >= 3 and name in ("ttl", "hour", "day"):
            self._collect(name)
        elif self._kind is FeedKind.RDF and name.rpartition(":")[2] == "li" and self._listing is None:
            resource = attributes.get("rdf:resource") or attributes.get("resource")
            if resource and len(self._listed) < MAX_ENTRIES:
                self._listing = (resource[:MAX_TEXT], self._parser.CurrentByteIndex, depth)

    def _root(self, name: str) -> None:
        prefix, _, local = name.rpartition(":")
        kinds = {"feed": FeedKind.ATOM, "rss": FeedKind.RSS, "RDF": FeedKind.RDF}
        if local not in kinds:
            raise NotAFeedError(f"the root element is {name[:60]!r}", malformed=False)
        self._kind = kinds[local]
        self._prefix = prefix + ":" if prefix and self._kind is FeedKind.ATOM else ""

    def _is_entry(self, name: str, depth: int) -> bool:
        if self._kind is FeedKind.ATOM:
            return depth == 2 and name == self._prefix + "entry"
        if self._kind is FeedKind.RSS:
            return name == "item" and (depth == 2 or (depth == 3 and self._path[1] == "channel"))
        return depth == 2 and name.rpartition(":")[2] == "item"

    def _in_entry(self, name: str, attributes: Mapping[str, str]) -> None:
        if self._kind is FeedKind.ATOM:
            if name == self._prefix + "link":
                if attributes.get("rel", "alternate") == "alternate" and attributes.get("href"):
                    self._found.setdefault("link", attributes["href"][:MAX_TEXT])
            elif name in (self._prefix + "id", self._prefix + "title"):
                self._collect(name.removeprefix(self._prefix))
        elif name in ("guid", "link", "title"):
            self._collect(name)

    def _collect(self, what: str) -> None:
        self._collecting = what
        self._collecting_depth = len(self._path)
        self._collected = []
        self._room = MAX_TEXT

    def _say_start(self, name: str, attributes: Mapping[str, str]) -> None:
        self._say_text()
        self._say("<" + name)
        for key in sorted(attributes):
            self._say(key + "=" + attributes[key])

    def _say_text(self) -> None:
        if self._text_so_far:
            text = "".join(self._text_so_far)
            self._text_so_far.clear()
            if not text.isspace():
                self._say(text)

    def _say(self, what: str) -> None:
        data = what.encode("utf-8", "surrogatepass")
        self._said.update(b"%d " % len(data))
        self._said.update(data)

    def _skipped(self, name: str, is_parameter: bool) -> None:
        """An entity that a DTD declares which nobody here reads: HTML's are known, of others the name counts."""
        if not is_parameter:
            self._text(chr(name2codepoint[name]) if name in name2codepoint else f"&{name};")

    def _text(self, text: str) -> None:
        if self._entry_depth:
            self._text_so_far.append(text)
        if self._collecting is not None and self._room > 0:
            self._collected.append(text[: self._room])
            self._room -= len(text)

    def _ended(self, name: str) -> None:
        depth = len(self._path)
        if self._entry_depth:
            self._say_text()
            self._say(">")
        if self._collecting is not None and depth == self._collecting_depth:
            self._take(self._collecting, "".join(self._collected).strip())
            self._collecting = None
        if depth == self._entry_depth:
            self._finish_entry(name)
        elif self._listing is not None and depth == self._listing[2]:
            resource, start, _ = self._listing
            self._listed.setdefault(resource, (self._before_space(start), self._end_of(name)))
            self._listing = None
        self._path.pop()

    def _take(self, what: str, text: str) -> None:
        if self._entry_depth:
            if text:
                self._found.setdefault(what, text)
        elif what == "ttl" and text.isascii() and text.isdigit():
            self._ttl = min(int(text[:9]), 60 * 24 * 365) * 60.0
        elif what == "hour" and text.isascii() and text.isdigit() and len(text) <= 2 and int(text) <= 24:
            self._skip_hours.add(int(text) % 24)  # 24 was written for midnight in RSS 0.92
        elif what == "day" and text.lower() in DAYS:
            self._skip_days.add(DAYS.index(text.lower()))

    def _end_of(self, name: str) -> int:
        """Where the element that ends now ends in the document."""
        at = self._parser.CurrentByteIndex
        if self._body.startswith(self._width.encode("</" + name), at):
            closing = self._width.encode(">")
            return self._body.find(closing, at) + len(closing)
        return at  # an empty element tag: expat already stands behind it

    def _finish_entry(self, name: str) -> None:
        end = self._end_of(name)
        digest = self._said.digest()
        for what in ("id", "guid", "about", "link", "title"):
            if what in self._found:
                # Under one word for each format, as feedparser has it, which reads the document when it is broken.
                key = entry_key(what if what in ("link", "title") else "id", self._found[what])
                break
        else:
            key = entry_key("content", digest.hex())
        name_of_its_own = next((self._found[what] for what in ("id", "guid", "about") if what in self._found), "")
        self._abouts.append(self._found.get("about", ""))
        self._entries.append(FeedEntry(key, digest, self._before_space(self._start), end, name_of_its_own))
        self._entry_depth = 0

    def _before_space(self, start: int) -> int:
        unit = self._width.unit
        spaces = {self._width.encode(c) for c in " \t\r\n"}
        while start >= unit and self._body[start - unit : start] in spaces:
            start -= unit
        return start
