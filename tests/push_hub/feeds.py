"""Feeds made for tests, with known entries."""

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
