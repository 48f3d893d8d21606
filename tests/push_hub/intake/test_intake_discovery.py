"""Hub and self links: headers first, then the document; never an exception."""

from hypothesis import given
from hypothesis import strategies as st

from push_hub.discovery import Links, discover
from tests.push_hub.intake.feeds import Item, atom
from tests.push_hub.intake.fetcher import Headers

SELF, HUB = "http://example.org/feed", "https://hub.example.org/"


def found(body: str | bytes = b"", kind: str = "", *links: str, base: str = "http://example.org/x") -> Links:
    headers = Headers([("Link", value) for value in links])
    return discover(headers, kind, body.encode() if isinstance(body, str) else body, base)


@given(
    st.lists(st.text(max_size=60) | st.text('<>;="\\, relhubself', max_size=60), max_size=5),
    st.sampled_from(["text/html", "application/atom+xml; charset=x", "text/xml", "image/png", ""]),
    st.binary(max_size=300)
    | st.text("<link rel=\"hub\" href='http://x'>!-/& headbodyscript", max_size=300).map(str.encode),
    st.text(max_size=30),
)
def test_discovery_never_raises(links: list[str], kind: str, body: bytes, base: str) -> None:
    result = found(body, kind, *links, base=base)
    assert len(result.hubs) <= 8


def test_link_headers_in_one_or_in_several() -> None:
    expected = Links((HUB,), SELF)
    assert found(b"", "", f'<{HUB}>; rel="hub", <{SELF}>; rel="self"') == expected
    assert found(b"", "", f"<{HUB}>;rel=hub", f'<{SELF}>; title="a, <b>"; REL="next SELF"') == expected


def test_headers_come_before_the_document_for_each_relation() -> None:
    body = atom([], self_url="http://example.org/in-body", hub="http://hub.example.org/in-body")
    kind = "application/atom+xml"
    assert found(body, kind) == Links(("http://hub.example.org/in-body",), "http://example.org/in-body")
    assert found(body, kind, f"<{HUB}>; rel=hub") == Links((HUB,), "http://example.org/in-body")


def test_rss_with_atom_links_also_after_the_items_but_not_inside() -> None:
    inside = f'<atom:link rel="hub" href="{HUB}inside"/>'
    body = f'<rss><channel><item>{inside}</item><atom:link rel="hub" href="{HUB}"/></channel></rss>'
    assert found(body, "application/rss+xml") == Links((HUB,), None)


def test_html_links_of_the_head_only() -> None:
    not_links = "<!-- <link rel=hub href=http://no/> --><script>'<link rel=hub href=http://no/>'</script>"
    head = f"{not_links}<link href='{HUB}' rel='HUB x'>"
    body = f"<html><head>{head}<link rel=self href={SELF} /></head><body><link rel=hub href=http://no/></body>"
    assert found(body, "text/html; charset=utf-8") == Links((HUB,), SELF)


def test_relative_links_are_resolved_and_odd_ones_left_out() -> None:
    assert found(b"", "", "</hub>; rel=hub", "<javascript:alert(1)>; rel=self", "<http://[bad>; rel=self") == Links(
        ("http://example.org/hub",), None
    )


def test_a_link_about_something_else_is_not_ours() -> None:
    assert found(b"", "", f'<{HUB}>; rel=hub; anchor="http://other.example.org/"') == Links()


def test_an_unsafe_or_broken_document_gives_what_came_before_the_trouble() -> None:
    assert (
        found('<!DOCTYPE feed [<!ENTITY a SYSTEM "b">]><feed><link rel="hub" href="http://h/"/></feed>', "text/xml")
        == Links()
    )
    assert found('<feed><link rel="hub" href="http://h/"/><broken', "text/xml") == Links(("http://h/",))
    many = "".join(f'<link rel="hub" href="http://h/{n}"/>' for n in range(500))
    assert len(found(f"<feed>{many}</feed>", "text/xml").hubs) == 8


def test_feed_entries_do_not_matter() -> None:
    assert found(atom([Item("a", "x")], hub=HUB), "application/atom+xml").hubs == (HUB,)
