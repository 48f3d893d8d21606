import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from identifiers import DEFAULT_NAMING, Topic, TopicError
from identifiers.topic import MAX_TOPIC_BYTES

labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
names = st.builds(
    lambda parts, top: ".".join([*parts, top]), st.lists(labels, max_size=3), st.sampled_from(["com", "org"])
)
hosts = st.one_of(
    names,
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(lambda address: f"[{address}]"),
    st.just("bücher.example"),
)
path_characters = st.one_of(
    st.sampled_from("abzAZ09-._~!$&'()*+,;=:@/\"<>^`{|}ü日"),
    st.sampled_from(["%7e", "%7E", "%2f", "%2F", "%c3%bc", "%00", "%2e", "..", "/./", "/../"]),
)
paths = st.lists(path_characters, max_size=12).map(lambda parts: "/" + "".join(parts))
queries = st.one_of(st.just(""), st.text('ab=&%7e?/:@"', max_size=10).map(lambda text: "?" + text))
ports = st.sampled_from(["", ":", ":80", ":443", ":8080"])


@st.composite
def urls(draw: st.DrawFn) -> str:
    scheme = draw(st.sampled_from(["http", "https", "HTTP", "HttpS"]))
    fragment = draw(st.sampled_from(["", "#", "#part"]))
    return f"{scheme}://{draw(hosts)}{draw(ports)}{draw(paths)}{draw(queries)}{fragment}"


@given(urls())
def test_canonicalisation_is_idempotent(url: str) -> None:
    topic = Topic.parse(url)
    assert Topic.parse(topic.url) == topic
    assert topic.url.isascii()
    assert "#" not in topic.url


@given(urls(), st.data())
def test_equal_topics_in_different_spellings_have_equal_ids(url: str, data: st.DataObject) -> None:
    canonical = Topic.parse(url)
    host = "".join(data.draw(st.sampled_from([c.lower(), c.upper()])) for c in canonical.host)
    dot = "" if canonical.is_ip_literal else data.draw(st.sampled_from(["", "."]))
    port = (
        f":{canonical.port}"
        if canonical.port
        else data.draw(st.sampled_from(["", ":", ":80" if canonical.scheme == "http" else ":443"]))
    )
    path = (
        "".join(
            f"%{ord(c):02x}" if c.isalnum() and data.draw(st.booleans(), label=f"escape {c}") else c
            for c in canonical.path
            if "%" not in canonical.path
        )
        or canonical.path
    )
    detour = data.draw(st.sampled_from(["", "/.", "/x/.."]))
    query = "" if canonical.query is None else f"?{canonical.query}"
    fragment = data.draw(st.sampled_from(["", "#f"]))
    other = Topic.parse(f"{canonical.scheme.upper()}://{host}{dot}{port}{detour}{path}{query}{fragment}")
    assert other == canonical
    assert DEFAULT_NAMING.of_topic(other) == DEFAULT_NAMING.of_topic(canonical)


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("http://Example.COM", "http://example.com/"),
        ("HTTPS://example.com:443/", "https://example.com/"),
        ("http://example.com:443/", "http://example.com:443/"),
        ("http://example.com:0080/", "http://example.com/"),
        ("http://example.com./a", "http://example.com/a"),
        ("http://bücher.example/", "http://xn--bcher-kva.example/"),
        ("http://XN--BCHER-KVA.example/", "http://xn--bcher-kva.example/"),
        ("http://faß.example/", "http://xn--fa-hia.example/"),
        ("http://[2001:DB8:0:0::1]:8080/", "http://[2001:db8::1]:8080/"),
        ("http://127.0.0.1/", "http://127.0.0.1/"),
        ("http://a_b.example/", "http://a_b.example/"),
        ("http://example.com/a/./b/../c", "http://example.com/a/c"),
        ("http://example.com/a/b/..", "http://example.com/a/"),
        ("http://example.com/../../a", "http://example.com/a"),
        ("http://example.com//a", "http://example.com//a"),
        ("http://example.com/%7Euser/%2e%2e/x", "http://example.com/x"),
        ("http://example.com/%e4%ba%ac", "http://example.com/%E4%BA%AC"),
        ("http://example.com/京", "http://example.com/%E4%BA%AC"),
        ("http://example.com/a%2fb", "http://example.com/a%2Fb"),
        ("http://example.com/?b=2&a=%7e&c", "http://example.com/?b=2&a=%7e&c"),
        ("http://example.com/?", "http://example.com/?"),
        ("http://example.com?q", "http://example.com/?q"),
        ("http://example.com/?q=ü", "http://example.com/?q=%C3%BC"),
        ("http://example.com/a#b?c", "http://example.com/a"),
    ],
)
def test_decided_spellings(url: str, canonical: str) -> None:
    assert Topic.parse(url).url == canonical


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "not an absolute URL"),
        ("example.com/a", "not an absolute URL"),
        ("/a", "not an absolute URL"),
        ("ftp://example.com/", "not 'ftp'"),
        ("mailto:a@example.com", "not an absolute URL"),
        ("javascript://example.com/", "not 'javascript'"),
        ("http://", "no host"),
        ("http://:80/", "no host"),
        ("http://./", "no host"),
        ("http://user@example.com/", "user name or password"),
        ("http://user:secret@example.com/", "user name or password"),
        ("http://example.com:0/", "port"),
        ("http://example.com:65536/", "port"),
        ("http://example.com:8o/", "port"),
        ("http://exa mple.com/", "character 11"),
        ("http://example.com/a b", "may not stand"),
        ("http://example.com/a\nb", "may not stand"),
        ("http:\\\\example.com/", "may not stand"),
        ("http://example.com/%", "two hex digits"),
        ("http://example.com/%zz", "two hex digits"),
        ("http://-a.example/", "not a label"),
        ("http://a..example/", "not a label"),
        ("http://" + "a" * 64 + ".example/", "not a label"),
        ("http://" + ".".join(["a" * 60] * 5) + "/", "longer than 253"),
        ("http://127.1/", "looks like an IPv4 address"),
        ("http://0x7f000001/", "looks like an IPv4 address"),
        ("http://0177.0.0.1/", "looks like an IPv4 address"),
        ("http://256.1.1.1/", "looks like an IPv4 address"),
        ("http://[::1/", "IPv6"),
        ("http://[fe80::1%25eth0]/", "zone ids"),
        ("http://[gg::]/", "IPv6"),
        ("http://\u2488com/", "internationalised|label"),
        ("http://example.com/" + "a" * MAX_TOPIC_BYTES, "longer than 8192"),
        ("http://example.com/" + "ü" * 4000, "when percent-encoded"),
        ("http://example.com/\ud800", "may not stand"),
    ],
)
def test_refusals_say_why(url: str, reason: str) -> None:
    with pytest.raises(TopicError, match=reason):
        Topic.parse(url)


@given(st.text(max_size=60).map(lambda text: "http://" + text))
def test_any_text_parses_or_is_refused(url: str) -> None:
    try:
        topic = Topic.parse(url)
    except TopicError:
        return
    assert Topic.parse(topic.url) == topic


@given(st.ip_addresses(v=6))
def test_ipv6_spellings_are_one(address: ipaddress.IPv6Address) -> None:
    assert Topic.parse(f"http://[{address.exploded}]/") == Topic.parse(f"http://[{address.compressed.upper()}]/")
