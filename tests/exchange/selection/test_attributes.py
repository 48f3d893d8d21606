"""What a publication can be selected by."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exchange.model import Draft, Profile
from exchange.selection.attributes import MAX_FIELDS, MAX_JSON_BYTES, MAX_VALUE, attributes_of
from identifiers import DEFAULT_NAMING

ITEM = DEFAULT_NAMING.of_user("a@a.example")
JSON_TYPE = "application/json; charset=utf-8"


def draft(body: bytes, content_type: str = JSON_TYPE, *attributes: tuple[str, str]) -> Draft:
    return Draft(ITEM, "a@a.example", Profile.EVENT, content_type, body, attributes)


def test_what_it_is_what_it_says_and_what_its_object_has() -> None:
    body = {"city": "Turku", "wind": {"speed": 7, "gusts": [9, 11.5]}, "dry": True, "rain": None, "tag": ["a", "b"]}
    found = attributes_of(draft(json.dumps(body).encode(), JSON_TYPE, ("tag", "own"), ("tag", "other")))
    assert found == {
        "@name": ["a@a.example"],
        "@type": ["application/json"],
        "@profile": ["event"],
        "tag": ["own", "other"],
        "city": ["Turku"],
        "wind.speed": ["7"],
        "wind.gusts": ["9", "11.5"],
        "dry": ["true"],
    }


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"{", JSON_TYPE),
        (b'{"a": 1}', "text/plain"),
        (b"3", JSON_TYPE),
        (b"[[1]]", JSON_TYPE),
        (b'{"a": "' + b"x" * MAX_JSON_BYTES + b'"}', JSON_TYPE),
        (b"[" * 5000, JSON_TYPE),
        (b'{"a":{"b":{"c":{"d":{"e":1}}}}}', JSON_TYPE),
    ],
)
def test_what_is_no_object_has_no_fields(body: bytes, content_type: str) -> None:
    assert set(attributes_of(draft(body, content_type))) == {"@name", "@type", "@profile"}


def test_fields_and_values_are_bounded() -> None:
    many = attributes_of(draft(json.dumps({f"f{number}": "x" * 5000 for number in range(10)}).encode()))
    assert {len(value[0]) for name, value in many.items() if name.startswith("f")} == {MAX_VALUE}
    wide = attributes_of(draft(json.dumps({f"f{number}": 1 for number in range(2 * MAX_FIELDS)}).encode()))
    assert len(wide) == MAX_FIELDS + 3


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
        max_leaves=12,
    )
)
def test_any_json_is_looked_at(value: object) -> None:
    assert all(values for values in attributes_of(draft(json.dumps(value).encode())).values())
