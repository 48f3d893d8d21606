"""The order of topics as a hierarchy: domain labels from the top level down, then port, path and query.

A topic's key is a byte string in which every kind of separator is a low byte that no canonical URL contains. Sorting
the keys sorts the topics as a tree, and everything below a domain or a path is one contiguous range of keys:

    com \\x04 example \\x01 feeds \\x01 a \\x02 lang=en       http://example.com/feeds/a?lang=en
"""

from typing import Final, NamedTuple

from identifiers.topic import DEFAULT_PORTS, Topic, canonical_host

_PATH: Final = b"\x01"
_QUERY: Final = b"\x02"
_PORT: Final = b"\x03"
_LABEL: Final = b"\x04"
_AFTER_QUERY: Final = b"\x03"
_AFTER_ALL: Final = b"\x05"


class KeyRange(NamedTuple):
    """Keys from `first`, included, to `end`, excluded."""

    first: bytes
    end: bytes


EVERYTHING: Final = KeyRange(b"", b"\xff")


def key_of(topic: Topic) -> bytes:
    """Where a topic stands in the hierarchy. The scheme does not count."""
    port = b"" if topic.port is None else _PORT + str(topic.port).encode()
    query = b"" if topic.query is None else _QUERY + topic.query.encode()
    return _host_key(topic.host) + port + topic.path.encode().replace(b"/", _PATH) + query


def topic_of(key: bytes, scheme: str) -> Topic:
    """The topic with this key, spelled with `scheme`."""
    place, _, rest = key.partition(_PATH)
    host_key, _, port = place.partition(_PORT)
    path, has_query, query = rest.partition(_QUERY)
    host = b".".join(reversed(host_key.split(_LABEL))).decode()
    return Topic(
        scheme,
        host,
        int(port) if port else None,
        "/" + path.replace(_PATH, b"/").decode(),
        query.decode() if has_query else None,
    )


def range_below(place: str) -> KeyRange:
    """The range of everything at or below a domain (`example.com`) or a topic URL (`http://example.com/feeds`)."""
    if place.partition("://")[0].lower() not in DEFAULT_PORTS:
        host = _host_key(canonical_host(place))
        return KeyRange(host, host + _AFTER_ALL)
    key = key_of(Topic.parse(place))
    if key.endswith(_PATH):
        return KeyRange(key, key[:-1] + _QUERY)
    return KeyRange(key, key + _AFTER_QUERY)


def _host_key(host: str) -> bytes:
    if host.startswith("[") or host.rpartition(".")[2].isdigit():
        return host.encode()  # an address has no labels to turn round
    return _LABEL.join(label.encode() for label in reversed(host.split(".")))
