"""Who an entry is and what it says: feedparser and the exact parser must agree, and every change must be seen."""

import contextlib
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from push_hub.intake.entries import DisagreementError, take_apart
from push_hub.intake.feeds import Feed, PollHints, read_feed, reduce_to, unseen
from push_hub.intake.packing import packed, unpacked
from push_hub.intake.worker import ParseVerdict, judged
from push_hub.xmlguard import UnsafeXmlError
from tests.push_hub.intake.feeds import Spelling, Story, atom_entry, rdf_item, rss_item, wild_feed

TYPES = {"atom": "application/atom+xml", "rss": "application/rss+xml", "rdf": "application/rdf+xml"}
WRITERS = {"atom": atom_entry, "rss": rss_item, "rdf": rdf_item}

kinds = st.sampled_from(sorted(TYPES))
# No leading or trailing space: parsers trim, and may. Letters beyond ASCII, markup, references, several lines.
texts = st.text(st.sampled_from("abcXYZ019 äöß€漢𝄞&<>\"'/;:#?=%-_.\n"), min_size=1, max_size=30).map(
    lambda text: "w" + text.replace("\r", "") + "w"
)
names = st.one_of(
    st.integers(0, 999).map(lambda n: f"tag:example.org,2026:{n}"),
    st.integers(0, 999).map(lambda n: f"http://example.org/?p={n}&q=1"),
    st.text("abcdefgh0123456789-", min_size=1, max_size=12),
)
links = st.integers(0, 999).map(lambda n: f"http://example.org/story/{n}")
dates = st.integers(10, 28).map(lambda day: f"2026-01-{day}T12:00:00Z")
stories = st.builds(
    Story, names, texts | st.none(), links | st.none(), texts | st.none(), dates | st.none(),
    st.lists(texts, max_size=2).map(tuple), texts | st.none(),
)  # fmt: skip
several = st.lists(stories, max_size=6, unique_by=lambda story: story.name)
spellings = st.builds(
    Spelling, st.booleans(), st.sampled_from(["'", '"']), st.sampled_from(["", "\n\t"]), st.booleans(), st.booleans()
)
feed_settings = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def apart(kind: str, body: bytes) -> Feed:
    feed = take_apart(body, TYPES[kind])
    assert feed is not None
    return feed


@given(kinds, several, spellings)
@feed_settings
def test_both_parsers_see_the_same_entries_in_generated_feeds(
    kind: str, stories: list[Story], spelling: Spelling
) -> None:
    body = wild_feed(kind, stories, spelling)
    feed = apart(kind, body)  # a disagreement raises
    assert feed.cuttable
    assert [body[e.start : e.end].decode().strip() for e in feed.entries] == [
        WRITERS[kind](story, spelling) for story in stories
    ]
    assert len({entry.key for entry in feed.entries}) == len(stories)


@given(kinds, several, spellings, spellings)
@feed_settings
def test_another_spelling_of_the_same_entries_is_no_news(
    kind: str, stories: list[Story], one: Spelling, other: Spelling
) -> None:
    seen = {entry.key: entry.digest for entry in apart(kind, wild_feed(kind, stories, one)).entries}
    assert unseen(apart(kind, wild_feed(kind, stories, other)), seen) == []


@given(kinds, stories, st.sampled_from(["title", "link", "text", "updated", "price", "tags"]), st.data())
@feed_settings
def test_a_change_of_any_field_is_an_update_of_the_same_entry(
    kind: str, story: Story, field: str, data: st.DataObject
) -> None:
    values = {"link": links, "updated": dates, "tags": st.lists(texts, max_size=2).map(tuple)}.get(field, texts)
    changed = replace(story, **{field: data.draw(values)})
    before, after = (apart(kind, wild_feed(kind, [one])).entries[0] for one in (story, changed))
    assert before.key == after.key
    assert (before.digest == after.digest) == (story == changed)


@given(kinds, several, st.data())
@feed_settings
def test_changes_hold_exactly_the_new_and_updated_entries(kind: str, stories: list[Story], data: st.DataObject) -> None:
    states = [data.draw(st.sampled_from(["seen", "new", "updated"])) for _ in stories]
    before = [
        replace(story, title=f"{story.title} before") if state == "updated" else story
        for story, state in zip(stories, states, strict=True)
        if state != "new"
    ]
    seen = {entry.key: entry.digest for entry in apart(kind, wild_feed(kind, before)).entries}
    body = wild_feed(kind, stories)
    feed = apart(kind, body)
    news = [story for story, state in zip(stories, states, strict=True) if state != "seen"]
    assert reduce_to(body, feed, unseen(feed, seen)) == wild_feed(kind, news)


def test_of_repeated_unknown_elements_all_count_not_only_the_last() -> None:
    def digest(first: str) -> bytes:
        inner = f"<guid>1</guid><x:p>{first}</x:p><x:p>2</x:p>"
        body = f'<rss version="2.0" xmlns:x="urn:x"><channel><item>{inner}</item></channel></rss>'
        return apart("rss", body.encode()).entries[0].digest

    assert digest("1") != digest("3")


def test_a_relative_id_is_resolved_by_feedparser_and_that_is_no_disagreement() -> None:
    body = (
        b'<feed xmlns="http://www.w3.org/2005/Atom" xml:base="http://example.org/a/">'
        b"<entry><id>b/1</id></entry><entry><id>/c</id></entry></feed>"
    )
    assert len(apart("atom", body).entries) == 2


@pytest.mark.parametrize(
    "body",
    [
        # The same namespace under another prefix: feedparser sees an entry, the exact parser does not look for it.
        '<feed xmlns="http://www.w3.org/2005/Atom" xmlns:a="http://www.w3.org/2005/Atom"><entry/><a:entry/></feed>',
        # An entry inside an entry.
        '<feed xmlns="http://www.w3.org/2005/Atom"><entry><id>1</id><entry><id>2</id></entry></entry></feed>',
        # Which of the two is it?
        '<rss version="2.0"><channel><item><guid>1</guid><guid>2</guid></item></channel></rss>',
    ],
)
def test_parsers_that_disagree_say_so(body: str) -> None:
    with pytest.raises(DisagreementError):
        take_apart(body.encode(), "text/xml")
    assert judged(body.encode(), "text/xml")[0] is ParseVerdict.DISAGREEMENT


def test_a_body_that_names_a_file_is_not_opened() -> None:
    with contextlib.suppress(DisagreementError):
        assert take_apart(__file__.encode(), "application/rss+xml") is None
    assert take_apart(b"/dev/stdin", "application/rss+xml") is None  # would wait for ever


def test_a_malformed_feed_is_read_by_feedparser_alone() -> None:
    def broken(*names: str) -> bytes:
        items = "".join(f"<item><guid>{n}</guid><title>a & b</title></item>" for n in names)
        return f"<rss version='2.0'><channel><title>x</title>{items}</channel>".encode()

    first, second = apart("rss", broken("a", "b")), apart("rss", broken("c", "a"))
    assert not first.cuttable
    assert len(unseen(second, {entry.key: entry.digest for entry in first.entries})) == 1
    # Mended, it has the same names.
    mended = apart("rss", broken("a").replace(b"&", b"&amp;") + b"</rss>")
    assert mended.cuttable
    assert mended.entries[0].key == first.entries[0].key


def test_other_xml_is_no_feed() -> None:
    assert take_apart(b"<html><body/></html>", "text/xml") is None
    assert take_apart(b"", "text/xml") is None
    assert take_apart(b"<<<", "text/xml") is None


def test_the_syndication_module_and_ttl_give_the_longer_wait() -> None:
    def ttl(inner: str) -> float | None:
        space = 'xmlns:sy="http://purl.org/rss/1.0/modules/syndication/"'
        return apart("rss", f'<rss version="2.0" {space}><channel>{inner}</channel></rss>'.encode()).hints.ttl

    daily = "<sy:updatePeriod>daily</sy:updatePeriod><sy:updateFrequency>4</sy:updateFrequency>"
    assert ttl(daily) == 6 * 3600
    assert ttl(daily + "<ttl>600</ttl>") == 600 * 60
    assert ttl("<sy:updatePeriod>hourly</sy:updatePeriod><sy:updateFrequency>-x</sy:updateFrequency>") == 3600
    assert ttl("<sy:updatePeriod>never</sy:updatePeriod>") is None


@given(st.binary(max_size=300) | st.text("<>/!?[]\"'=& entryidguidrssfeedchannelitem", max_size=300).map(str.encode))
@feed_settings
def test_hostile_documents_give_a_verdict_and_nothing_else(body: bytes) -> None:
    assert judged(body, "text/xml")[0] is not ParseVerdict.FAILED


def test_unsafe_documents_are_refused_before_feedparser() -> None:
    with pytest.raises(UnsafeXmlError):
        take_apart(b'<!DOCTYPE f [<!ENTITY a SYSTEM "file:///x">]><feed/>', "text/xml")


@given(kinds, several, st.builds(PollHints, st.none() | st.floats(0, 1e9), st.frozensets(st.integers(0, 23)),
                                 st.frozensets(st.integers(0, 6))))  # fmt: skip
@feed_settings
def test_a_feed_survives_the_way_between_processes(kind: str, stories: list[Story], hints: PollHints) -> None:
    feed = replace(apart(kind, wild_feed(kind, stories)), hints=hints)
    # Names are for the two parsers' agreement, which is over.
    assert unpacked(packed(feed)) == replace(feed, entries=[replace(entry, id="") for entry in feed.entries])


@given(st.binary(max_size=300))
def test_unpacking_nonsense_is_a_value_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        unpacked(data)


def test_the_exact_parser_alone_reads_what_it_cuts() -> None:
    body = wild_feed("atom", [Story("1", "one")])
    assert reduce_to(body, read_feed(body), []) == wild_feed("atom", [])


FEEDBURNER = (
    '<rss version="2.0" xmlns:feedburner="http://rssnamespace.org/feedburner/ext/1.0"><channel>'
    '<item><guid isPermaLink="false">new</guid>{neighbour}</item>'
    "<item><link>story/1</link><title>One</title><description>text</description></item>"
    '<item><guid isPermaLink="false">2</guid><title>Two</title></item></channel></rss>'
)


@pytest.mark.parametrize("end", ["", "<"])
def test_what_an_entry_is_depends_on_no_neighbour(end: str) -> None:
    """feedparser lets the `base` of one entry reach those behind it. `end`: only it can read that."""

    def entries(neighbour: str) -> list[tuple[bytes, bytes]]:
        body = FEEDBURNER.format(neighbour=neighbour).replace("</rss>", f"</rss{end}>").encode()
        return [(entry.key, entry.digest) for entry in apart("rss", body).entries]

    moved, alone = entries('<media base="http://other.example/a/"/>'), entries("")
    assert moved[0] != alone[0]
    assert moved[-1:] == alone[-1:]
    assert end or moved[1:] == alone[1:]
