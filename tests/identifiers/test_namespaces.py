"""Kinds of names: how each is read, shown, made an item, and looked at by rules; and one that comes from outside."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from identifiers import DEFAULT_NAMING, HashName, ItemId, Naming, Scheme, TopicError
from identifiers.namespaces import STANDARD, Name, Namespaces

IDS = "::5a910861145757d9d2971e73f7d75863d563c968/::df262e3a401c37a2e43f3627653cd71c8dd8fbf5"
NAMINGS = [Naming(scheme, hash_name) for scheme in Scheme for hash_name in HashName]
LABEL = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True)
HOST = st.builds("{}.{}".format, LABEL, st.sampled_from(["example.com", "co.uk", "example.org:8080"]))
PATH = st.from_regex(r"[A-Za-z0-9/%.~@?]{0,12}", fullmatch=True)
NAMES = st.one_of(
    st.builds("{}://{}/{}".format, st.sampled_from(["http", "HTTPS"]), HOST, PATH),
    st.builds("{}@{}".format, LABEL, HOST),
    st.builds("{}@{}/{}".format, LABEL, HOST, LABEL),
    st.builds("item:{}/{}".format, st.just("::5a"), st.just("::df")),
)


@pytest.mark.parametrize(
    ("text", "namespace", "shown", "host", "place"),
    [
        ("HTTP://Example.com:80/a/../b#c", "url", "http://example.com/b", "example.com", "example.com/b"),
        ("https://example.com:81?x", "url", "https://example.com:81/?x", "example.com", "example.com:81/?x"),
        ("Alice@Example.com", "user", "alice@example.com", "example.com", "example.com/alice"),
        ("alice@example.com/receipts", "user", "alice@example.com/receipts", "example.com", "example.com/alice"),
        (IDS, "item", f"item:{IDS}", "", f"item:{IDS}"),
        (f"item:{IDS}", "item", f"item:{IDS}", "", f"item:{IDS}"),
    ],
)
def test_how_names_are_read(text: str, namespace: str, shown: str, host: str, place: str) -> None:
    name = STANDARD.read(text)
    assert (name.namespace, name.shown, name.host, name.place) == (namespace, shown, host, place)


@pytest.mark.parametrize("text", ["", "room-7", "a/b/c", "http://", "ftp://example.com/", "@example.com", "item:xy"])
def test_what_is_no_name_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(TopicError, match=r"\S"):
        STANDARD.read(text)


def test_what_is_below_a_user_has_an_item_of_its_own() -> None:
    alice, receipts = (STANDARD.read(text).item(DEFAULT_NAMING) for text in ("alice@a.example", "alice@a.example/r"))
    assert alice == DEFAULT_NAMING.of_user("alice@a.example")
    assert (receipts.sid, receipts.rid) == (alice.sid, DEFAULT_NAMING.of_seed("alice/r"))


@given(NAMES, st.sampled_from(NAMINGS))
def test_every_spelling_says_the_same_item_and_the_same_spellings(text: str, naming: Naming) -> None:
    try:
        name = STANDARD.read(text)
        item = name.item(naming)
    except TopicError:
        return
    found = STANDARD.spellings(name, naming)
    assert found[0] == name.shown
    assert found[-1] == f"item:{item}"
    for spelling in found:
        other = STANDARD.read(spelling)
        assert (other.shown, other.item(naming)) == (spelling, item)
        if not other.is_any:
            assert set(STANDARD.spellings(other, naming)) == set(found)


def test_a_topic_and_a_user_with_one_item_show_each_other() -> None:
    spellings = STANDARD.spellings(STANDARD.read("alice@a.example"), DEFAULT_NAMING)
    assert spellings[:3] == ("alice@a.example", "http://a.example/alice", "https://a.example/alice")
    by_zone = Naming(Scheme.ZONE)
    assert STANDARD.spellings(STANDARD.read("alice@a.example"), by_zone)[1].startswith("item:")


class Rooms:
    """Names of a protocol that is not here."""

    label = "room"

    def claims(self, text: str) -> bool:
        return text.startswith("room:")

    def read(self, text: str) -> Name:
        house, _, room = text.removeprefix("room:").partition("/")
        if not room:
            raise TopicError("a room is room:HOUSE/ROOM")

        def item(naming: Naming) -> ItemId:
            return ItemId(naming.of_seed(house), naming.of_seed(room))

        return Name(self.label, text.lower(), item, house, f"room:{house}/{room}".lower())

    def pattern(self, text: str) -> str:
        return text.lower()


def test_a_namespace_comes_from_outside() -> None:
    namespaces = STANDARD.plus(Rooms())
    assert namespaces.read("room:Villa/Hall").place == "room:villa/hall"
    assert namespaces.read("alice@a.example").namespace == "user"
    assert [namespace.label for namespace in namespaces] == ["room", "url", "item", "user"]
    with pytest.raises(TopicError, match="no name of any kind that is known here"):
        STANDARD.read("room:villa/hall")
    with pytest.raises(ValueError, match="twice"):
        namespaces.plus(Rooms())
    assert isinstance(namespaces, Namespaces)
