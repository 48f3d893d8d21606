"""Feeds made for tests, with known entries."""

import html
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Item:
    name: str
    text: str = ""


def atom(items: list[Item], title: str = "A feed", self_url: str = "", hub: str = "") -> bytes:
    links = (f'<link rel="self" href="{self_url}"/>' if self_url else "") + (
        f'<link rel="hub" href="{hub}"/>' if hub else ""
    )
    entries = "".join(f"\n  <entry><id>urn:{i.name}</id><title>{i.text}</title></entry>" for i in items)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<feed xmlns="http://www.w3.org/2005/Atom">'
        f"<id>urn:feed</id><title>{title}</title>{links}{entries}\n</feed>\n"
    ).encode()


def odd(items: list[Item]) -> bytes:
    """With an element that no format has: feedparser is asked about it."""
    return atom(items).replace(b"<id>urn:feed</id>", b"<id>urn:feed</id><odd/>")


def rss(items: list[Item], title: str = "A channel", more: str = "") -> bytes:
    entries = "".join(f"\n<item><guid>{i.name}</guid><description>{i.text}</description></item>" for i in items)
    return (
        f'<?xml version="1.0"?><rss version="2.0"><channel><title>{title}</title>{more}{entries}\n</channel></rss>'
    ).encode()


def rdf(items: list[Item], title: str = "A channel") -> bytes:
    entries = "".join(f'\n<item rdf:about="urn:{i.name}"><title>{i.text}</title></item>' for i in items)
    return (
        '<?xml version="1.0"?><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" '
        f'xmlns="http://purl.org/rss/1.0/"><channel><title>{title}</title></channel>{entries}\n</rdf:RDF>'
    ).encode()


# Feeds as they are in the wild: every field, any spelling. Two spellings of one entry say the same.


@dataclass(frozen=True, slots=True)
class Story:
    """An entry's content; None leaves the element out."""

    name: str | None
    title: str | None = None
    link: str | None = None
    text: str | None = None
    updated: str | None = None
    tags: tuple[str, ...] = ()
    price: str | None = None
    """An element of a namespace nobody knows."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """How the same content may be written differently."""

    cdata: bool = False
    quote: str = '"'
    indent: str = ""
    comment: bool = False
    references: bool = False


def _written(text: str, spelling: Spelling) -> str:
    if spelling.cdata and "]]>" not in text:
        return f"<![CDATA[{text}]]>"
    if spelling.references:
        return "".join(c if c.isalnum() and c.isascii() else f"&#{ord(c)};" for c in text)
    return html.escape(text, quote=False)


def _attribute(name: str, value: str, spelling: Spelling) -> str:
    return f" {name}={spelling.quote}{html.escape(value)}{spelling.quote}"


def _element(name: str, value: str | None, spelling: Spelling, attributes: str = "") -> str:
    return "" if value is None else f"{spelling.indent}<{name}{attributes}>{_written(value, spelling)}</{name}>"


def _common(story: Story, spelling: Spelling) -> str:
    comment = f"{spelling.indent}<!-- - -->" if spelling.comment else ""
    return comment + _element("title", story.title, spelling) + _element("x:price", story.price, spelling)


def atom_entry(story: Story, spelling: Spelling) -> str:
    link = "" if story.link is None else f"{spelling.indent}<link{_attribute('href', story.link, spelling)}/>"
    tags = "".join(f"{spelling.indent}<category{_attribute('term', tag, spelling)}/>" for tag in story.tags)
    content = _element("content", story.text, spelling, _attribute("type", "html", spelling))
    name = _element("id", story.name, spelling)
    updated = _element("updated", story.updated, spelling)
    return f"<entry>{name}{link}{_common(story, spelling)}{updated}{tags}{content}{spelling.indent}</entry>"


def rss_item(story: Story, spelling: Spelling, about: str = "") -> str:
    name = "" if about else _element("guid", story.name, spelling)
    tags = "".join(_element("category", tag, spelling) for tag in story.tags)
    fields = _element("link", story.link, spelling) + _element("description", story.text, spelling)
    date = _element("pubDate", story.updated, spelling)
    return f"<item{about}>{name}{_common(story, spelling)}{fields}{date}{tags}{spelling.indent}</item>"


def rdf_item(story: Story, spelling: Spelling) -> str:
    return rss_item(story, spelling, _attribute("rdf:about", story.name, spelling) if story.name is not None else "")


def wild_feed(kind: str, stories: Sequence[Story], spelling: Spelling | None = None) -> bytes:
    """`kind` is atom, rss or rdf."""
    how = spelling or Spelling()
    other = 'xmlns:x="http://example.org/x"'
    if kind == "atom":
        head, tail = f'<feed xmlns="http://www.w3.org/2005/Atom" {other}><id>urn:f</id><title>F</title>', "</feed>"
        entries = [atom_entry(story, how) for story in stories]
    elif kind == "rss":
        head, tail = f'<rss version="2.0" {other}><channel><title>F</title>', "</channel></rss>"
        entries = [rss_item(story, how) for story in stories]
    else:
        rdf_space = 'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"'
        head = f'<rdf:RDF {rdf_space} xmlns="http://purl.org/rss/1.0/" {other}><channel><title>F</title></channel>'
        tail = "</rdf:RDF>"
        entries = [rdf_item(story, how) for story in stories]
    return f'<?xml version="1.0" encoding="utf-8"?>\n{head}{"".join(entries)}{tail}'.encode()
