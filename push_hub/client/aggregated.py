"""0.3 hubs may put the entries of several topics into one delivery; each entry then says where it is from. No I/O."""

from collections.abc import Mapping
from xml.parsers import expat

from push_hub.discovery import is_xml
from push_hub.xmlguard import MAX_DEPTH, UnsafeXmlError, check_prolog, guarded_parser

MAX_SOURCES = 1_000


class _EnoughError(Exception):
    pass


def sources_of(content_type: str, body: bytes) -> tuple[str, ...]:
    """The self links (or ids) of the `atom:source` elements of a feed's entries, without repeats. Never raises."""
    if not is_xml(content_type):
        return ()
    found: dict[str, None] = {}
    path: list[str] = []
    link = text = ""

    def started(name: str, attributes: Mapping[str, str]) -> None:
        nonlocal link, text
        path.append(name.rpartition(":")[2])
        if len(path) > MAX_DEPTH or len(found) >= MAX_SOURCES:
            raise _EnoughError
        if path[1:] == ["entry", "source"]:
            link = text = ""
        elif path[1:] == ["entry", "source", "link"] and attributes.get("rel") == "self":
            link = link or attributes.get("href", "")

    def ended(_: str) -> None:
        if path[1:] == ["entry", "source"] and (link or text.strip()):
            found[link or text.strip()] = None
        path.pop()

    def said(data: str) -> None:
        nonlocal text
        if path[1:] == ["entry", "source", "id"]:
            text += data

    try:
        check_prolog(body)
        parser = guarded_parser()
        parser.StartElementHandler = started
        parser.EndElementHandler = ended
        parser.CharacterDataHandler = said
        parser.Parse(body, True)
    except (_EnoughError, UnsafeXmlError, expat.ExpatError, ValueError, LookupError):
        pass  # what was found before the trouble still counts
    return tuple(found)
