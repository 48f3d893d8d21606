import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from identifiers import ROOT_SCOPE, Identifier, IdentifierSyntaxError, ItemId

zero_rich = st.lists(st.one_of(st.just(b"\0"), st.binary(min_size=1, max_size=1)), min_size=32, max_size=32).map(
    b"".join
)
values = st.one_of(st.binary(min_size=32, max_size=32), zero_rich)
identifiers = values.map(Identifier)


@given(identifiers)
def test_text_form_round_trips(identifier: Identifier) -> None:
    assert Identifier.parse(str(identifier)) == identifier
    assert Identifier.parse(bytes(identifier).hex().upper()) == identifier


@given(identifiers, identifiers)
def test_pairs_round_trip(sid: Identifier, rid: Identifier) -> None:
    pair = ItemId(sid, rid)
    assert ItemId.parse(str(pair)) == pair
    assert bytes(pair) == bytes(sid) + bytes(rid)


@given(values, values)
def test_order_and_hash_follow_the_bytes(first: bytes, second: bytes) -> None:
    assert (Identifier(first) < Identifier(second)) == (first < second)
    assert (Identifier(first) == Identifier(second)) == (first == second)
    assert hash(Identifier(first)) == hash(Identifier(bytes(bytearray(first))))


@given(values)
def test_the_gap_stands_for_the_longest_zero_run(value: bytes) -> None:
    head, gap, tail = str(Identifier(value)).partition("::")
    longest = max(len(run) for run in bytes(byte == 0 for byte in value).split(b"\0"))
    if longest < 2:
        assert not gap
    else:
        assert 32 - (len(head) + len(tail)) // 2 == longest


def test_known_text_forms() -> None:
    assert str(ROOT_SCOPE) == "::"
    assert str(Identifier(bytes(12) + bytes.fromhex("5a910861145757d9d2971e73f7d75863d563c968"))) == (
        "::5a910861145757d9d2971e73f7d75863d563c968"
    )
    assert str(Identifier(b"\xaa" + bytes(30) + b"\xbb")) == "aa::bb"
    assert str(Identifier(bytes(31) + b"\x01")) == "::01"
    assert str(Identifier(b"\x01" * 32)) == "01" * 32


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("::g0", 2),
        ("0::", 1),
        ("::000", 5),
        ("aa" * 31, 62),
        ("aa" * 33, 64),
        ("aa" * 16 + "::" + "bb" * 16, 32),
        ("::aa::bb", 4),
        ("aa bb::", 2),
    ],
)
def test_bad_text_says_where(text: str, position: int) -> None:
    with pytest.raises(IdentifierSyntaxError, match=f"at character {position + 1} of") as caught:
        Identifier.parse(text)
    assert caught.value.position == position


@pytest.mark.parametrize(
    ("text", "part", "position"), [("::/::x", "Rid", 5), ("x/::", "Sid", 0), ("::", "separator", 2)]
)
def test_bad_pairs_say_which_half_and_where(text: str, part: str, position: int) -> None:
    with pytest.raises(IdentifierSyntaxError, match=part) as caught:
        ItemId.parse(text)
    assert caught.value.position == position


@given(st.text(max_size=80))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        identifier = Identifier.parse(text)
    except IdentifierSyntaxError as error:
        assert 0 <= error.position <= len(text)
    else:
        assert Identifier.parse(str(identifier)) == identifier


def test_identifiers_are_immutable_small_and_picklable() -> None:
    identifier = Identifier(b"\x01" * 32)
    with pytest.raises(AttributeError):
        identifier._value = b""
    with pytest.raises(AttributeError):
        del identifier._value
    assert not hasattr(identifier, "__dict__")
    assert pickle.loads(pickle.dumps(identifier)) == identifier  # noqa: S301
    with pytest.raises(ValueError, match="32 bytes, not 3"):
        Identifier(b"abc")
