import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from identifiers.lookalikes import shape, why_misleading


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("bob", "b0b"),
        ("scope", "\u0455\u0441\u043e\u0440\u0435"),  # all of it Cyrillic
        ("alice", "\u0430lice"),
        ("arnold", "amold"),
        ("bill", "bi1l"),
        ("o", "\u0585"),
    ],
)
def test_names_that_look_alike_have_one_shape(one: str, other: str) -> None:
    assert shape(one) == shape(other)


@pytest.mark.parametrize(("one", "other"), [("alice", "bob"), ("muller", "m\u00fcller"), ("a", "b"), ("e", "\u00e9")])
def test_names_that_can_be_told_apart_have_shapes_of_their_own(one: str, other: str) -> None:
    assert shape(one) != shape(other)


@pytest.mark.parametrize(
    "name",
    [
        "alice",
        "bob.smith-1",
        "m\u00fcller",
        "stra\u00dfe",
        "\u043f\u0438\u0432\u043e",
        "\u03c1\u03c9",
        "\u65e5\u672c\u8a9e\u30ab\u3072",
        "\ud55c\uad6dabc",
        "\u0643\u0644\u0628",
    ],
)
def test_names_of_all_alphabets_are_in_order(name: str) -> None:
    assert why_misleading(name) is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("\u0430lice", "Cyrillic and Latin"),
        ("\u03bfbama", "Greek and Latin"),
        ("a\u05d0", "Hebrew and Latin"),
        ("\uff41lice", "write 'alice'"),
        ("\U0001d41adam", "write 'adam'"),
        ("\ufb01sh", "write 'fish'"),
        ("\u06612", "digits"),
        ("\u00e1\u0302\u0303\u0304", "accents"),
        ("\u0301a", "accents"),
        ("ad\u115fmin", "cannot be seen"),
        ("ad\u034fmin", "cannot be seen"),
        ("admin\ufe0f", "cannot be seen"),
        ("\u2800admin", "cannot be seen"),
    ],
)
def test_misleading_names_are_refused_in_words(name: str, said: str) -> None:
    assert said in (why_misleading(name) or "")


@given(st.text(max_size=20))
def test_any_text_has_a_shape_that_stays(text: str) -> None:
    name = unicodedata.normalize("NFC", text.lower())
    why_misleading(name)
    assert shape(shape(name)) == shape(name)
