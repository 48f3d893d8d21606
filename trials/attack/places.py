"""Where everybody is in the namespaces of an attack: addresses that the guard takes for public ones, as in production.

The addresses belong to nobody here: the namespaces lead nowhere else. Names are made by rules (`name_server.py`), so
that a stranger has as many as they like.
"""

from identifiers import Identifier, ItemId

NAME_SERVER = "9.53.0.1"
"""Also the router between all others."""
HUB = "9.10.0.1"
"""The hub or gateway that is attacked."""
OTHER_HUB = "9.10.1.1"
"""The gateway of the other domain; the innocent subscriber is there."""
PUBLISHER = "9.20.0.1"
READER = "9.20.1.1"
STRANGER = "9.66.0.1"
STRANGERS = "9.66.0.0/16"
INSIDE = ("10.0.0.1", "169.254.169.254", "127.0.0.1")
"""Addresses of the hub's own machine, where something answers that strangers must not reach."""
INSIDE_PORT = 8000

DOMAIN = "innocent.example"
"""Of the attacked gateway."""
ADMIN_PORT = 8090
WEB_PORT = 8091
OPERATOR_TOKEN = "3f1a9c07d2-of-an-operator-of-the-attacked-one"  # noqa: S105  (of an attack only)
FEED = "http://feed.innocent.example/feed"
CALLBACK = "http://reader.innocent.example/callback"
ITEM = ItemId(Identifier(bytes(31) + b"\x21"), Identifier(bytes(31) + b"\x22"))
"""What somebody innocent publishes in the network itself."""
TENANTS = "/tenant/"
"""Below it, on the host of the innocent reader, are callbacks of others."""
HUB_URL = f"http://{HUB}/"
OTHER_HUB_URL = f"http://{OTHER_HUB}/"

WIRE_ENDS = ("9.40.0.1", "9.40.0.2")
"""Of the UDP link between the attacked gateway and the node in the middle."""
WIRE_PORT = 4000
UNUSED_PORT = 4001
"""Where the attacked gateway waits for a neighbour that is configured and not there: the stranger has its address."""

FIXED_NAMES = {
    "feed.innocent.example.": PUBLISHER,
    "reader.innocent.example.": READER,
    "hub.example.": HUB,
    "other-hub.example.": OTHER_HUB,
}
STRANGERS_ZONE = "stranger.example."
SILENT = "silent-"


def stranger_name(label: str, address: str = STRANGER) -> str:
    """A name of the stranger's zone that leads to an address."""
    return f"{label}.to-{address.replace('.', '-')}.{STRANGERS_ZONE}".rstrip(".")


def turning_name(label: str, first: str, then: str) -> str:
    """A name that leads to one address when it is looked up the first time, and to another one from then on."""
    ways = "--".join(address.replace(".", "-") for address in (first, then))
    return f"{label}.turns-{ways}.{STRANGERS_ZONE}".rstrip(".")


def silent_name(label: str) -> str:
    """A name of a domain of its own, whose name server never answers."""
    return f"www.{SILENT}{label}.example"


def stranger_address(number: int) -> str:
    """One of the stranger's addresses, each in a /24 of its own as long as there are some."""
    return f"9.66.{number % 256}.{1 + number // 256 % 250}"
