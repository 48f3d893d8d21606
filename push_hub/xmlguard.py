"""Is this XML safe to give to a parser? Looks only at the prolog, in one linear pass, before any parser runs.

Entity declarations are how a small document becomes a huge one (billion laughs) or reads other files (external
entities). A DOCTYPE that only names a DTD is common in old RSS and harmless: nobody here loads it. An internal
subset may declare a few short, non-nesting character entities (old feeds declare `nbsp`), or take in one of HTML's own
three sets of them (old RSS 1.0 does), and nothing else. Nothing is ever fetched: who needs HTML's entities has a table.
"""

import re
from enum import Enum, auto
from xml.parsers import expat

MAX_PROLOG = 64 * 1024
"""The root element must begin within this many bytes."""
MAX_SUBSET = 4096
MAX_ENTITIES = 64
MAX_ENTITY_VALUE = 16
MAX_DEPTH = 200

_ENTITY = re.compile(rb"""<!ENTITY\s+([^\s%"'<>]{1,64})\s+(?:"([^"]*)"|'([^']*)')\s*>""")
_SET = re.compile(
    rb"""<!ENTITY\s+%\s+([A-Za-z][A-Za-z0-9_.-]{0,63})\s+"""
    rb"""(?:PUBLIC\s+(?:"([^"]{0,200})"|'([^']{0,200})')|SYSTEM)\s+(?:"([^"]{0,200})"|'([^']{0,200})')\s*>"""
)
_USE = re.compile(rb"%([A-Za-z][A-Za-z0-9_.-]{0,63});")
HTML_SETS = frozenset(
    f"http://www.w3.org/TR/{place}{name}.ent"
    for place, names in (
        ("xhtml1/DTD/xhtml-", ("lat1", "symbol", "special")),
        ("html4/HTML", ("lat1", "symbol", "special")),
        ("html40/HTML", ("lat1", "symbol", "special")),
    )
    for name in names
) | {"http://my.netscape.com/publish/formats/rss-0.91.dtd"}
HTML_SET_NAMES = frozenset(
    {f"-//W3C//ENTITIES {name} for XHTML//EN" for name in ("Latin 1", "Symbols", "Special")}
    | {f"-//W3C//ENTITIES {name}//EN//HTML" for name in ("Latin1", "Symbols", "Special")}
    | {"-//Netscape Communications//DTD RSS 0.91//EN"}
)
_VALUE = re.compile(rb"(?:[^&%<]|&#(?:[0-9]{1,7}|x[0-9a-fA-F]{1,6});)*")


def is_html_set(public: str | None, system: str | None) -> bool:
    """Whether this names a known set of HTML's character entities; a public name says it whatever place it is at."""
    return system in HTML_SETS if public is None else " ".join(public.split()) in HTML_SET_NAMES


class UnsafeXmlError(Exception):
    """The document could harm a parser; the text says how."""


class Width(Enum):
    """How ASCII characters are laid out in the document."""

    BYTE = auto()
    UTF16_LE = auto()
    UTF16_BE = auto()

    def encode(self, text: str) -> bytes:
        return text.encode({"BYTE": "utf-8", "UTF16_LE": "utf-16-le", "UTF16_BE": "utf-16-be"}[self.name])

    @property
    def unit(self) -> int:
        return 1 if self is Width.BYTE else 2


def width_of(body: bytes) -> Width:
    head = body[:4]
    if head[:2] == b"\xff\xfe" or (head[:1] == b"<" and head[1:2] == b"\0"):
        return Width.UTF16_LE
    if head[:2] == b"\xfe\xff" or head[:2] == b"\0<":
        return Width.UTF16_BE
    return Width.BYTE


def check_prolog(body: bytes) -> None:
    """Raise `UnsafeXmlError` unless the part before the root element is harmless."""
    # Dropping the zero bytes turns the ASCII part of UTF-16 and UTF-32 into ASCII.
    prolog = body[: 4 * MAX_PROLOG].replace(b"\0", b"")[:MAX_PROLOG]
    at = 0
    while True:
        at = prolog.find(b"<", at)
        if at < 0:
            if len(prolog) >= MAX_PROLOG:
                raise UnsafeXmlError(f"no root element within the first {MAX_PROLOG} bytes")
            return
        if prolog.startswith(b"<?", at):
            end = prolog.find(b"?>", at)
        elif prolog.startswith(b"<!--", at):
            end = prolog.find(b"-->", at + 4)
        elif prolog[at : at + 2] == b"<!":
            end = _after_doctype(prolog, at)
        else:
            return
        if end < 0:
            if len(prolog) >= MAX_PROLOG:
                raise UnsafeXmlError(f"no root element within the first {MAX_PROLOG} bytes")
            return
        at = end + 1


def _after_doctype(prolog: bytes, at: int) -> int:
    """The index of the `>` that ends the declaration, or -1 when it is not in sight."""
    position = at + 2
    while position < len(prolog):
        char = prolog[position : position + 1]
        if char in b"\"'":
            position = prolog.find(char, position + 1)
            if position < 0:
                return -1
        elif char == b">":
            return position
        elif char == b"[":
            position = _check_subset(prolog, position + 1)
        position += 1
    return -1


def _check_subset(prolog: bytes, start: int) -> int:
    end = prolog.find(b"]", start)
    if end < 0 or end - start > MAX_SUBSET:
        raise UnsafeXmlError(f"the document type declaration is longer than {MAX_SUBSET} bytes")
    entities = 0
    sets: set[bytes] = set()
    at = start
    while prolog[at:end].strip():
        at = end - len(prolog[at:end].lstrip())
        entities += 1
        if entities > MAX_ENTITIES:
            raise UnsafeXmlError(f"more than {MAX_ENTITIES} entity declarations")
        known = _html_set(prolog, at, end, sets)
        if known is not None:
            at = known
            continue
        match = _ENTITY.match(prolog, at, end)
        if match is None:
            raise UnsafeXmlError("the document type declaration holds more than short entity declarations")
        value = match[2] if match[2] is not None else match[3]
        if len(value) > MAX_ENTITY_VALUE or _VALUE.fullmatch(value) is None:
            raise UnsafeXmlError("an entity declaration is long, nested or markup")
        at = match.end()
    return end


def _html_set(prolog: bytes, at: int, end: int, sets: set[bytes]) -> int | None:
    """Behind the declaration of a set of HTML's entities, or the use of one that was declared; None when it is none."""
    used = _USE.match(prolog, at, end)
    if used is not None:
        return used.end() if used[1] in sets else None
    declared = _SET.match(prolog, at, end)
    if declared is None:
        return None
    public, system = declared[2] or declared[3], declared[4] or declared[5] or b""
    if not is_html_set(
        None if public is None else public.decode("ascii", "replace"), system.decode("ascii", "replace")
    ):
        return None
    sets.add(declared[1])
    return declared.end()


def guarded_parser(encoding: str | None = None) -> expat.XMLParserType:
    """An expat parser that enforces the same rules itself, should a strange encoding have fooled the look above."""
    parser = expat.ParserCreate(encoding)
    declared = 0

    def entity_declared(
        name: str,
        is_parameter: bool,
        value: str | None,
        base: str | None,
        system_id: str | None,
        public_id: str | None,
        notation: str | None,
    ) -> None:
        nonlocal declared
        declared += 1
        if is_parameter and value is None and is_html_set(public_id, system_id) and declared <= MAX_ENTITIES:
            return
        if is_parameter or value is None or declared > MAX_ENTITIES or len(value) > MAX_ENTITY_VALUE or "&" in value:
            raise UnsafeXmlError("an entity declaration is external, long or nested")

    parser.EntityDeclHandler = entity_declared
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
    return parser
