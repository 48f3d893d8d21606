import hashlib

import pytest

from identifiers import HashName, Naming, NoZoneError, Scheme, Topic, TopicError, Zone, zone_of

BY_HOST = Naming()
BY_ZONE = Naming(Scheme.ZONE)


def sha1_text(seed: str) -> str:
    return "::" + hashlib.sha1(seed.encode()).hexdigest()


def test_the_specification_s_fqdn_path_example() -> None:
    item = BY_HOST.of_topic(Topic.parse("http://rss.dit.upm.es/datagisai_feedstest"))
    assert str(item.sid) == sha1_text("rss.dit.upm.es") == "::5a910861145757d9d2971e73f7d75863d563c968"
    assert str(item.rid) == sha1_text("datagisai_feedstest")


def test_the_specification_s_zone_example() -> None:
    item = BY_ZONE.of_topic(Topic.parse("http://news.feedspsirp.com/a"))
    assert (str(item.sid), str(item.rid)) == (sha1_text("feedspsirp.com"), sha1_text("news/a"))


def test_the_specification_s_signalling_example() -> None:
    item = BY_HOST.of_signalling(zone_of("news.feedspsirp.com"))
    assert (str(item.sid), str(item.rid)) == (sha1_text("feedspsirp"), sha1_text(".com"))


def test_the_specification_s_user_example_in_any_case() -> None:
    for address in ("alice@psirpnetwork.com", "Alice@PSIRPnetwork.com."):
        item = BY_HOST.of_user(address)
        assert (str(item.sid), str(item.rid)) == (sha1_text("psirpnetwork.com"), sha1_text("alice"))


def test_a_person_and_the_link_of_its_chat_documents_are_one_name() -> None:
    assert BY_HOST.of_user("alice@psirpnetwork.com") == BY_HOST.of_topic(Topic.parse("http://psirpnetwork.com/alice"))


@pytest.mark.parametrize(
    ("url", "fqdn_path", "zone"),
    [
        ("http://example.com/", ("example.com", ""), ("example.com", "/")),
        ("http://example.com:8080/a?q", ("example.com:8080", "a?q"), ("example.com", ":8080/a?q")),
        ("http://a.b.example.co.uk/x/y", ("a.b.example.co.uk", "x/y"), ("example.co.uk", "a.b/x/y")),
        ("http://a.example.com/", ("a.example.com", ""), ("example.com", "a/")),
        ("http://alice.github.io/feed", ("alice.github.io", "feed"), ("alice.github.io", "/feed")),
    ],
)
def test_seeds(url: str, fqdn_path: tuple[str, str], zone: tuple[str, str]) -> None:
    assert BY_HOST.seeds(Topic.parse(url)) == fqdn_path
    assert BY_ZONE.seeds(Topic.parse(url)) == zone


def test_http_and_https_share_ids_but_not_across_ports() -> None:
    for naming in (BY_HOST, BY_ZONE):
        plain = naming.of_topic(Topic.parse("http://example.com/a"))
        assert naming.of_topic(Topic.parse("https://example.com/a")) == plain
        assert naming.of_topic(Topic.parse("http://example.com:443/a")) != plain


def test_sha256_fills_all_32_bytes() -> None:
    item = Naming(hash_name=HashName.SHA256).of_topic(Topic.parse("http://example.com/a"))
    assert bytes(item.sid) == hashlib.sha256(b"example.com").digest()
    assert bytes(item.rid) == hashlib.sha256(b"a").digest()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost", "com", "co.uk"])
def test_hosts_without_a_zone_are_named_by_fqdn_path_only(host: str) -> None:
    topic = Topic.parse(f"http://{host}/a")
    assert BY_HOST.of_topic(topic).rid == BY_HOST.of_seed("a")
    with pytest.raises(NoZoneError):
        BY_ZONE.of_topic(topic)


def test_suffixes_of_several_labels_count_as_one_top_level() -> None:
    assert zone_of("news.example.co.uk") == Zone("example", "co.uk")
    assert zone_of("example.unknowntld") == Zone("example", "unknowntld")


@pytest.mark.parametrize(
    "address", ["alice", "@example.com", "alice@", "a b@example.com", "a/b@example.com", "a@b@c d"]
)
def test_bad_user_addresses_are_refused(address: str) -> None:
    with pytest.raises(TopicError):
        BY_HOST.of_user(address)


def test_two_sides_that_disagree_say_so() -> None:
    assert BY_HOST.mismatch(Naming().announcement) is None
    reason = BY_HOST.mismatch(Naming(Scheme.ZONE, HashName.SHA256).announcement)
    assert reason is not None
    assert "fqdn-path/sha1" in reason
    assert "zone/sha256" in reason


def test_a_hundred_thousand_domains_never_share_a_sid() -> None:
    domains = {f"d{number}.zone{number % 317}.example{number % 11}.org" for number in range(100_000)}
    assert len(domains) == 100_000
    assert len({BY_HOST.of_topic(Topic.parse(f"http://{domain}/feed")).sid for domain in domains}) == len(domains)


def test_the_original_text_s_bootstrapping_ids_never_meet_and_ours_do() -> None:
    """The original subscribes to h("news") and publishes to h("news.feedpsirp.com"): no publication can arrive."""
    printed_subscription = BY_HOST.of_seed("news")
    printed_publication = BY_HOST.of_seed("news.feedpsirp.com")
    assert printed_subscription != printed_publication
    for naming in (BY_HOST, BY_ZONE):
        subscribed = naming.of_topic(Topic.parse("http://news.feedpsirp.com/a"))
        published = naming.of_topic(Topic.parse("HTTP://News.FeedPSIRP.com:80/a#latest"))
        delivered = {subscribed: "listener"}.get(published)
        assert delivered == "listener"
