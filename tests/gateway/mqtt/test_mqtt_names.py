"""Topics and names of a domain, both ways; and an item that a sensor and a page share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocols.mqtt.names import MqttNamespace, TopicNames
from identifiers import DEFAULT_NAMING, TopicError
from identifiers.namespaces import STANDARD

NAMESPACES = STANDARD.plus(MqttNamespace())
NAMES = TopicNames("home.example", DEFAULT_NAMING, NAMESPACES)


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("kitchen/temp", "mqtt://home.example/kitchen/temp"),
        ("/kitchen//temp/", "mqtt://home.example//kitchen//temp/"),
        ("Küche/a b?c=d", "mqtt://home.example/Küche/a b?c=d"),
        ("$mqtt/other.example/x", "mqtt://other.example/x"),
        ("$web/news.example/feed.xml", "https://news.example/feed.xml"),
        ("$chat/ana@b.example", "ana@b.example"),
        ("$else/x", "mqtt://home.example/$else/x"),
    ],
)
def test_topics_have_names_and_names_topics(topic: str, name: str) -> None:
    shown, item = NAMES.of_topic(topic)
    assert shown == name
    assert NAMES.topic_of(shown) == topic
    assert NAMESPACES.read(name).item(DEFAULT_NAMING) == item


def test_a_sensor_and_a_page_of_one_name_are_one_item() -> None:
    item = NAMES.of_topic("kitchen/temp")[1]
    assert NAMESPACES.read("http://home.example/kitchen/temp").item(DEFAULT_NAMING) == item
    spellings = NAMESPACES.spellings(NAMESPACES.read("mqtt://home.example/kitchen/temp"), DEFAULT_NAMING)
    assert "http://home.example/kitchen/temp" in spellings
    assert NAMES.topic_of("http://home.example/kitchen/temp") == "kitchen/temp"
    assert NAMES.of_topic("$web/news.example/feed.xml")[1] == NAMESPACES.read("http://news.example/feed.xml").item(
        DEFAULT_NAMING
    )


@given(st.text(min_size=1, max_size=40))
def test_every_topic_is_a_name_of_its_own_or_none(topic: str) -> None:
    try:
        shown, _ = NAMES.of_topic(topic)
    except TopicError:
        return
    assert topic.startswith("$") or NAMES.topic_of(shown) == topic


@pytest.mark.parametrize("text", ["mqtt://", "mqtt://home.example", "mqtt://home.example/", "mqtt://h.example/a/+"])
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(TopicError):
        NAMESPACES.read(text)


def test_rules_are_about_places_below_a_domain() -> None:
    namespace = MqttNamespace()
    assert namespace.pattern("mqtt://home.example/") == "home.example/"
    assert namespace.pattern("mqtt://home.example/kitchen/") == "home.example/kitchen/"
    assert NAMESPACES.read("mqtt://home.example/kitchen/temp").place == "home.example/kitchen/temp"
