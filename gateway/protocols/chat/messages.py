"""What people say to each other, as RSS 2.0 documents: one channel, whose description is the text.

Beside what the specification prints (title, link, description, `dc:creator`) a document has `dc:identifier`, without
which two equal messages would be one version, `dc:date`, and in a namespace of our own whom it is for. A document
without these is read all the same. Receipts are documents of the same form that list the messages which arrived.

Reading is strict where it protects: no document type, no entities, bounded size, depth and text.
"""

import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote
from xml.parsers import expat

from gateway.converters.readable import TITLE_CHARACTERS, Readable
from identifiers import TopicError
from identifiers.naming import split_user

CONTENT_TYPE = "application/rss+xml"
DC = "http://purl.org/dc/elements/1.1/"
OURS = "urn:psph:chat"
MAX_TEXT = 4000
"""Characters of one message."""
MAX_DOCUMENT = 64 * 1024
MAX_DEPTH = 16
MAX_ID = 64
MAX_RECEIVED = 50
MAX_ADDRESS = 512
MAX_ATTEMPT = 1000
_SPACES_ALLOWED = "\n\t"
_NOT_CHARACTERS = "\ufffe\uffff"


class ChatError(ValueError):
    """A document that is no message, or a text that cannot be one; says why."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One text of one person."""

    id: str
    creator: str
    text: str
    at: float
    """Seconds since the epoch, by the writer's clock; 0 when the document does not say."""
    to: str = ""
    """Whom it is for; empty: everybody who follows the writer."""
    attempt: int = 1
    """A message that is sent again is another version of its item, or nobody would get it."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Which messages of `to` have arrived at `creator`."""

    id: str
    creator: str
    to: str
    received: tuple[str, ...]
    begins: bool = False
    """`creator` listens from now on: what was sent before and is not named here did not arrive."""


def address_of(text: str) -> str:
    """`user@domain` in the one spelling; `ChatError` for what is none."""
    if len(text) > MAX_ADDRESS:
        raise ChatError(f"an address has at most {MAX_ADDRESS} characters")
    try:
        user, domain = split_user(text.strip())
    except TopicError as error:
        raise ChatError(str(error)) from None
    return f"{user}@{domain}"


def checked_text(text: str) -> str:
    """The text as it will be sent; `ChatError` when it is empty, too long, or holds what no document may hold."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        raise ChatError("the message is empty")
    if len(text) > MAX_TEXT:
        raise ChatError(f"a message has at most {MAX_TEXT} characters, not {len(text)}")
    for character in text:
        if not _is_character(character):
            raise ChatError(f"a message cannot hold the character U+{ord(character):04X}")
    return text


def is_id(text: str) -> bool:
    """Whether this may name a message: short and plain."""
    return 0 < len(text) <= MAX_ID and text.isascii() and all(c.isalnum() or c in "-_" for c in text)


def link_of(address: str) -> str:
    user, _, domain = address.rpartition("@")
    return f"http://{domain}/{quote(user, safe='')}"


def write_message(message: ChatMessage) -> bytes:
    more = [f"<dc:date>{_iso(message.at)}</dc:date>"]
    if message.to:
        more.append(f"<psph:to>{_escape(message.to)}</psph:to>")
    if message.attempt > 1:
        more.append(f"<psph:attempt>{message.attempt}</psph:attempt>")
    return _document(message.id, f"Message from {message.creator}", message.creator, message.text, more)


def write_receipt(receipt: Receipt) -> bytes:
    more = [f"<psph:to>{_escape(receipt.to)}</psph:to>"]
    if receipt.begins:
        more.append("<psph:begins/>")
    more += [f"<psph:received>{_escape(one)}</psph:received>" for one in receipt.received]
    text = f"{len(receipt.received)} messages arrived"
    return _document(receipt.id, f"Receipt from {receipt.creator}", receipt.creator, text, more)


def read(body: bytes) -> ChatMessage | Receipt:
    """The message or receipt in a document; `ChatError` for anything else."""
    found = _Reader().read(body)
    if not found.rss or not found.channels:
        raise ChatError("not an RSS 2.0 document with a channel")
    creator = address_of(found.creator)
    to = address_of(found.to) if found.to.strip() else ""
    name = found.identifier.strip()
    if not name:
        name = hashlib.sha256(body).hexdigest()[:MAX_ID]
    if not is_id(name):
        raise ChatError("the identifier of the message is too long or not plain")
    if found.received or found.begins:
        if len(found.received) > MAX_RECEIVED or not all(map(is_id, found.received)):
            raise ChatError(f"a receipt names at most {MAX_RECEIVED} messages by plain identifiers")
        if not to:
            raise ChatError("a receipt says whose messages arrived")
        return Receipt(name, creator, to, tuple(found.received), found.begins)
    return ChatMessage(name, creator, checked_text(found.text), _seconds(found.date), to, _attempt(found.attempt))


def readable(document: bytes) -> Readable | None:
    """What a message says to whoever reads its writer; None when it is for somebody in particular."""
    try:
        said = read(document)
    except ChatError:
        return None
    if isinstance(said, Receipt) or said.to:
        return None
    title = said.text.strip().partition("\n")[0][:TITLE_CHARACTERS]
    return Readable(title, said.text, said.creator, link_of(said.creator), said.id)


@dataclass(slots=True)
class _Found:
    rss: bool = False
    channels: int = 0
    creator: str = ""
    text: str = ""
    identifier: str = ""
    date: str = ""
    to: str = ""
    attempt: str = ""
    begins: bool = False
    received: list[str] = field(default_factory=list)


_FIELDS = {
    "description": "text",
    f"{DC} creator": "creator",
    f"{DC} identifier": "identifier",
    f"{DC} date": "date",
    f"{OURS} to": "to",
    f"{OURS} attempt": "attempt",
}
_RECEIVED = f"{OURS} received"
_BEGINS = f"{OURS} begins"
_CHANNEL_DEPTH = 3


class _Reader:
    """Takes the direct children of the channel; everything else in the document is passed over."""

    def __init__(self) -> None:
        self._found = _Found()
        self._path: list[str] = []
        self._text: list[str] | None = None
        self._seen: set[str] = set()

    def read(self, body: bytes) -> _Found:
        if len(body) > MAX_DOCUMENT:
            raise ChatError(f"a message is a document of at most {MAX_DOCUMENT} bytes, not {len(body)}")
        parser = expat.ParserCreate(namespace_separator=" ")
        # Entities are declared in a document type, so without one there are none to grow or to read files.
        parser.StartDoctypeDeclHandler = self._doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        try:
            parser.Parse(body, True)
        except expat.ExpatError as error:
            raise ChatError(f"not well-formed XML: {error}") from None
        except ChatError:
            raise
        except (LookupError, ValueError):
            raise ChatError("in an encoding that nobody here reads") from None
        return self._found

    def _doctype(self, *_: object) -> None:
        raise ChatError("a message has no document type declaration")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._path.append(name)
        if len(self._path) > MAX_DEPTH:
            raise ChatError(f"elements are nested deeper than {MAX_DEPTH}")
        if self._path == ["rss"]:
            self._found.rss = attributes.get("version", "").startswith("2.")
        elif self._path == ["rss", "channel"]:
            self._found.channels += 1
        elif self._here() and name == _BEGINS:
            self._found.begins = True
        elif self._here() and (name == _RECEIVED or (name in _FIELDS and name not in self._seen)):
            self._seen.add(name)
            self._text = []

    def _end(self, name: str) -> None:
        if self._text is not None and self._here():
            text, self._text = "".join(self._text), None
            if name == _RECEIVED:
                self._found.received.append(text.strip())
            else:
                setattr(self._found, _FIELDS[name], text)
        self._path.pop()

    def _characters(self, data: str) -> None:
        if self._text is not None:
            self._text.append(data)

    def _here(self) -> bool:
        return len(self._path) == _CHANNEL_DEPTH and self._path[:2] == ["rss", "channel"]


def _document(name: str, title: str, creator: str, text: str, more: list[str]) -> bytes:
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<rss version="2.0" xmlns:dc="{DC}" xmlns:psph="{OURS}"><channel>'
        f"<title>{_escape(title)}</title>"
        f"<link>{_escape(link_of(creator))}</link>"
        f"<description>{_escape(text)}</description>"
        f"<dc:creator>{_escape(creator)}</dc:creator>"
        f"<dc:identifier>{_escape(name)}</dc:identifier>"
        f"{''.join(more)}"
        "</channel></rss>\n"
    ).encode()


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _is_character(character: str) -> bool:
    """Whether XML 1.0 can hold it."""
    if character < " ":
        return character in _SPACES_ALLOWED
    return not ("\ud800" <= character <= "\udfff") and character not in _NOT_CHARACTERS


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _seconds(date: str) -> float:
    try:
        moment = datetime.fromisoformat(date.strip())
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _attempt(text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 4):
        return 1
    return min(max(int(text), 1), MAX_ATTEMPT)
