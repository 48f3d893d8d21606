"""URLs as keys: one spelling, refused shapes, and parameters appended without touching what was there."""

from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from push_hub.protocol import urls
from push_hub.protocol.urls import UrlError, host_of, normalised, with_parameters


@pytest.mark.parametrize(
    ("given_url", "expected"),
    [
        ("http://a.example/%7Euser/%61", "http://a.example/~user/a"),
        ("http://a.example/%2F%3f", "http://a.example/%2F%3f"),
        ("http://a.example/%2561", "http://a.example/%2561"),
        ("HTTP://A.example:8080/x?y=%2d#z", "HTTP://A.example:8080/x?y=-#z"),
        ("http://[2001:db8::1]/", "http://[2001:db8::1]/"),
    ],
)
def test_unreserved_characters_are_decoded_and_nothing_else(given_url: str, expected: str) -> None:
    assert normalised(given_url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "", "feed", "ftp://a.example/", "http://", "http:///x", "http://a.example:0/", "http://a.example:99999/",
        "http://a.example:x/", "http://user:pw@a.example/", "http://a.example/ x", "http://a.example/\n", "http://[::1",
        "http://a.example/%", "http://a.example/%zz", "http://a.example/é", "http://a.example/" + "x" * 2048,
        "javascript:alert(1)", "http://a%2fb/",
    ],
)  # fmt: skip
def test_refused(url: str) -> None:
    with pytest.raises(UrlError):
        normalised(url)


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60).map("http://a.example/".__add__))
def test_normalising_twice_changes_nothing(url: str) -> None:
    try:
        once = normalised(url)
    except UrlError:
        return
    assert normalised(once) == once
    assert host_of(once) == "a.example"


@given(
    st.sampled_from(["http://", "https://", "HTTP://", "http:/", "ftp://"]),
    st.text("aZ0.-_@%:[]", max_size=8),
    st.sampled_from(["", ":", ":0", ":7", ":80", ":08", ":9999", ":59999", ":64999", ":65535", ":65536", ":99999"]),
    st.text("/?#%aZ~=&;@:[]'\"{ \\", max_size=10),
)
def test_a_usual_url_is_its_own_spelling_whoever_looks(scheme: str, host: str, port: str, rest: str) -> None:
    url = scheme + host + port + rest
    if urls._USUAL.fullmatch(url):
        urls._check_shape(url)
        assert urls._FORBIDDEN.search(url) is None
        assert "%" not in url


@pytest.mark.parametrize(
    ("callback", "expected"),
    [
        ("http://a.example/cb", "http://a.example/cb?n=v"),
        ("http://a.example/cb?", "http://a.example/cb?n=v"),
        ("http://a.example/cb?a", "http://a.example/cb?a&n=v"),
        ("http://a.example/cb?n=1&n=2", "http://a.example/cb?n=1&n=2&n=v"),
        ("http://a.example/cb?a#f", "http://a.example/cb?a&n=v#f"),
    ],
)
def test_parameters_are_appended(callback: str, expected: str) -> None:
    assert with_parameters(callback, [("n", "v")]) == expected


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.lists(st.tuples(TEXT.filter(bool), TEXT), min_size=1, max_size=5))
def test_appended_parameters_read_back(parameters: list[tuple[str, str]]) -> None:
    url = with_parameters("http://a.example/cb?keep=%41&keep", parameters)
    assert url.startswith("http://a.example/cb?keep=%41&keep&")
    assert parse_qsl(urlsplit(url).query, keep_blank_values=True)[2:] == parameters
