"""Topics as names: those of a domain, and doors to the names of other protocols. Sans-I/O.

| topic of an MQTT client | name | item |
|---|---|---|
| `kitchen/temp` | `mqtt://home.example/kitchen/temp`, of the gateway's domain | Sid of the domain, Rid of the topic |
| `$mqtt/other.example/kitchen/temp` | `mqtt://other.example/kitchen/temp` | the same, of another domain |
| `$web/news.example/feed.xml` | `https://news.example/feed.xml` | as a topic of the web |
| `$chat/ana@home.example` | `ana@home.example` | as somebody's name |

The name of a topic is seeded as the address `http://DOMAIN/TOPIC` is where both are spelled the same: a sensor and a
page of one name are one item.
"""

from functools import lru_cache
from typing import Final

from gateway.protocols.mqtt.packets import CodecError
from gateway.protocols.mqtt.texts import topic_of
from identifiers import ItemId, Naming, TopicError
from identifiers.namespaces import Name, Namespaces
from identifiers.naming import split_user

SCHEME: Final = "mqtt://"
OTHER_DOMAIN: Final = "$mqtt/"
WEB: Final = "$web/"
PEOPLE: Final = "$chat/"
_WEB_SCHEMES: Final = ("https://", "http://")


class MqttNamespace:
    """`mqtt://DOMAIN/TOPIC`."""

    label = "mqtt"

    def claims(self, text: str) -> bool:
        return text.startswith(SCHEME)

    def read(self, text: str) -> Name:
        host, slash, topic = text.removeprefix(SCHEME).partition("/")
        if not text.startswith(SCHEME) or not slash:
            raise TopicError(f"expected {SCHEME}DOMAIN/TOPIC, not {text[:80]!r}")
        domain = split_user(f"somebody@{host}")[1]
        if not topic:
            raise TopicError(f"{text[:80]!r} names no topic")
        try:
            topic_of(topic.encode())
        except (CodecError, UnicodeEncodeError) as error:
            raise TopicError(f"{text[:80]!r}: {error}") from None
        return Name(
            self.label,
            f"{SCHEME}{domain}/{topic}",
            lambda naming: ItemId(naming.of_seed(domain), naming.of_seed(topic)),
            domain,
            f"{domain}/{topic}",
            others=tuple(f"{scheme}{domain}/{topic}" for scheme in _WEB_SCHEMES),
        )

    def pattern(self, text: str) -> str:
        if text.endswith("/") and text.count("/") == 3:
            return split_user(f"somebody@{text.removeprefix(SCHEME)[:-1]}")[1] + "/"
        return self.read(text).place


class TopicNames:
    """What clients of a broker call things."""

    def __init__(self, domain: str, naming: Naming, namespaces: Namespaces) -> None:
        self.domain = domain
        self._naming = naming
        self._namespaces = namespaces
        self._home = f"{SCHEME}{domain}/"
        self.of_topic = lru_cache(maxsize=20_000)(self._of_topic)
        """The name and the item of a topic. Raises `TopicError`."""

    def _of_topic(self, topic: str) -> tuple[str, ItemId]:
        name = self._namespaces.read(self.name_of(topic))
        return name.shown, name.item(self._naming)

    def name_of(self, topic: str) -> str:
        if topic.startswith("$"):
            for prefix, scheme in ((OTHER_DOMAIN, SCHEME), (WEB, "https://"), (PEOPLE, "")):
                if topic.startswith(prefix):
                    return scheme + topic.removeprefix(prefix)
        return self._home + topic

    def topic_of(self, shown: str) -> str:
        """What clients here call a name."""
        if shown.startswith(self._home):
            return shown.removeprefix(self._home)
        if shown.startswith(SCHEME):
            return OTHER_DOMAIN + shown.removeprefix(SCHEME)
        for scheme in _WEB_SCHEMES:
            if shown.startswith(scheme):
                place = shown.removeprefix(scheme)
                at_home = f"{self.domain}/"
                return place.removeprefix(at_home) if place.startswith(at_home) else WEB + place
        return PEOPLE + shown
