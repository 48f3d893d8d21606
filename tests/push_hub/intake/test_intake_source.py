"""Fetching a topic: redirects and their limits, validators, encodings, sizes; other content than feeds untouched."""

import gzip
import json
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import brotli
import pytest
from hypothesis import given
from hypothesis import strategies as st

from push_hub.hub import TABLES
from push_hub.intake import Intake, IntakeConfig
from push_hub.intake.source import Fetched, FetchFailedError, Validators, fetch_document
from push_hub.model import Content
from storage import Database
from tests.push_hub.intake.feeds import Item, atom
from tests.push_hub.intake.fetcher import LogSink, ScriptedFetch, WantedElsewhere

S, H = "https://s.example", "http://h.example"
CONFIG = IntakeConfig()


async def fetched(fetch: ScriptedFetch, start: str, known: Validators | None = None, **config: int) -> Fetched:
    return await fetch_document(fetch, start, known or Validators(), 3, replace(CONFIG, **config))  # type: ignore[arg-type]


async def refusal(fetch: ScriptedFetch, start: str, **config: int) -> FetchFailedError:
    with pytest.raises(FetchFailedError) as failed:
        await fetched(fetch, start, **config)
    return failed.value


async def test_https_is_never_left_for_http() -> None:
    fetch = ScriptedFetch()
    fetch.set(f"{S}/", status=301, Location=f"{H}/")
    fetch.set(f"{H}/", b"secret")
    error = await refusal(fetch, f"{S}/")
    assert error.reason == "a redirect from https down to http is refused"
    assert error.lasting
    assert fetch.urls == [f"{S}/"]


async def test_nor_on_a_way_that_began_with_http() -> None:
    fetch = ScriptedFetch()
    fetch.set(f"{H}/", status=302, Location=f"{S}/")
    fetch.set(f"{S}/", status=302, Location=f"{H}/2")
    assert "down to http" in (await refusal(fetch, f"{H}/")).reason
    assert fetch.urls == [f"{H}/", f"{S}/"]


@given(st.integers(0, 8), st.integers(0, 6))
async def test_so_many_redirects_and_not_one_more(hops: int, limit: int) -> None:
    fetch = ScriptedFetch()
    for n in range(hops):
        fetch.set(f"{H}/{n}", status=307, Location=f"/{n + 1}")
    fetch.set(f"{H}/{hops}", b"there")
    if hops <= limit:
        assert (await fetched(fetch, f"{H}/0", max_redirects=limit)).body == b"there"
    else:
        assert f"more than {limit} redirects" in (await refusal(fetch, f"{H}/0", max_redirects=limit)).reason
    assert len(fetch.asked) == min(hops, limit) + 1


@given(st.integers(1, 5), st.integers(0, 4))
async def test_circles_of_any_length_end_where_they_close(length: int, entry: int) -> None:
    fetch = ScriptedFetch()
    for n in range(entry):
        fetch.set(f"{H}/in{n}", status=302, Location=f"/in{n + 1}" if n + 1 < entry else "/0")
    for n in range(length):
        fetch.set(f"{H}/{n}", status=302, Location=f"/{(n + 1) % length}#again")
    error = await refusal(fetch, f"{H}/in0" if entry else f"{H}/0", max_redirects=20)
    assert "circle" in error.reason
    assert error.lasting
    assert len(fetch.asked) == entry + length


@pytest.mark.parametrize(
    "location",
    ["", "ftp://x/", "javascript:1", "file:///etc/passwd", "http://", "http://[bad", "http://h:port/", "/" + "a" * 3000,
     "http://h/\u202e", "//"],
)  # fmt: skip
async def test_redirects_to_nowhere_are_refused(location: str) -> None:
    fetch = ScriptedFetch()
    fetch.set(f"{H}/", status=302, Location=location)
    assert "redirect" in (await refusal(fetch, f"{H}/")).reason


@pytest.mark.parametrize(
    ("statuses", "moved"),
    [
        ([301], "/1"),
        ([308], "/1"),
        ([301, 308], "/2"),
        ([301, 302], "/1"),
        ([302, 301], None),
        ([303], None),
        ([307], None),
        ([], None),
    ],
)
async def test_only_permanent_redirects_from_the_start_move_a_topic(statuses: list[int], moved: str | None) -> None:
    fetch = ScriptedFetch()
    for n, status in enumerate(statuses):
        fetch.set(f"{H}/{n}", status=status, Location=f"/{n + 1}")
    fetch.set(f"{H}/{len(statuses)}", b"x")
    assert (await fetched(fetch, f"{H}/0")).moved_to == (moved and H + moved)


async def test_validators_go_only_to_the_address_that_gave_them() -> None:
    fetch = ScriptedFetch()
    fetch.set(f"{H}/", status=302, Location="/b")
    fetch.set(f"{H}/b", b"x", ETag='"1"', Last_Modified="Mon, 01 Jan 2024 00:00:00 GMT")
    first = await fetched(fetch, f"{H}/")
    again = await fetched(fetch, f"{H}/", first.validators)
    assert (again.status, again.body) == (304, None)
    assert "If-None-Match" not in fetch.asked[2].headers
    assert fetch.asked[3].headers["If-None-Match"] == '"1"'
    assert fetch.asked[3].headers["If-Modified-Since"] == "Mon, 01 Jan 2024 00:00:00 GMT"


async def test_last_modified_alone_is_enough_for_a_304() -> None:
    fetch = ScriptedFetch()
    fetch.set(f"{H}/", b"x", Last_Modified="Mon, 01 Jan 2024 00:00:00 GMT")
    first = await fetched(fetch, f"{H}/")
    assert (await fetched(fetch, f"{H}/", first.validators)).body is None


async def test_a_304_nobody_asked_for_is_a_failure() -> None:
    fetch = ScriptedFetch()
    fetch.set(f"{H}/", status=304)
    assert "304" in (await refusal(fetch, f"{H}/")).reason


@pytest.mark.parametrize("value", ["x" * 2000, "bad\nvalue", "é"])
async def test_validators_that_could_not_be_sent_back_are_dropped(value: str) -> None:
    fetch = ScriptedFetch()
    fetch.set(f"{H}/", b"x", ETag=value, Last_Modified=value)
    assert (await fetched(fetch, f"{H}/")).validators == Validators(f"{H}/")


@pytest.mark.parametrize(
    ("status", "lasting"),
    [(204, False), (206, False), (400, True), (404, True), (410, True), (408, False), (429, False), (500, False),
     (503, False), (199, False), (600, False)],
)  # fmt: skip
async def test_statuses_without_a_document(status: int, lasting: bool) -> None:
    fetch = ScriptedFetch()
    fetch.set(f"{H}/", b"x", status=status)
    assert (await refusal(fetch, f"{H}/")).lasting == lasting


BOMB = bytes(3_000_000)


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", gzip.compress(BOMB)),
        ("deflate", zlib.compress(BOMB)),
        ("br", brotli.compress(BOMB, quality=1)),
        ("gzip, br", brotli.compress(gzip.compress(BOMB))),
    ],
    ids=["gzip", "deflate", "br", "twice"],
)
async def test_decompression_bombs_are_refused(coding: str, body: bytes) -> None:
    fetch = ScriptedFetch()
    fetch.set(f"{H}/", body, Content_Encoding=coding)
    assert "larger" in (await refusal(fetch, f"{H}/", max_body_bytes=1_000_000)).reason
    assert (await fetched(fetch, f"{H}/", max_body_bytes=3_000_000)).body == BOMB


# Through the intake


class Setup:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.fetch = ScriptedFetch()
        self.now = 1_000_000.0
        self.intake = Intake(
            database, self.fetch, LogSink(database), CONFIG, lambda: self.now, elsewhere=WantedElsewhere()
        )

    async def ping(self, url: str) -> None:
        self.now += 1
        await self.intake.ping([url])
        await self.intake.idle()

    def published(self, url: str) -> list[tuple[str, bytes, bytes | None]]:
        return self.database.read(
            "SELECT content_type, body, changes FROM publications WHERE topic = ? ORDER BY id", (url,)
        )


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    with Database.open(tmp_path / "hub.db", TABLES) as database:
        one = Setup(database)
        await one.intake.start()
        yield one
        await one.intake.stop()


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", json.dumps({"version": "https://jsonfeed.org/version/1.1", "items": []}).encode()),
        ("application/feed+json; charset=utf-8", b'{ "a" : 1 }\r\n'),
        ("text/plain;charset=ISO-8859-1", "größer\r\n\0\x80".encode("latin-1")),
        ("image/png", b"\x89PNG\r\n\x1a\n" + bytes(range(256))),
        ("image/svg+xml", b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
        ("text/html", b"<!doctype html><title>x</title>"),
        ("application/xml", b"<?xml version='1.0'?><data><entry/></data>"),
        ("text/csv", b"\xef\xbb\xbfa,b\r\n1,2\r\n"),
        ("x", b""),
    ],
    ids=["json", "jsonfeed", "text", "png", "svg", "html", "xml", "csv", "empty"],
)
async def test_other_content_is_passed_on_whole_and_byte_identical(
    setup: Setup, content_type: str, body: bytes
) -> None:
    setup.fetch.set(f"{H}/", body, Content_Type=content_type)
    await setup.ping(f"{H}/")
    await setup.ping(f"{H}/")
    setup.fetch.set(f"{H}/", body + b" ", Content_Type=content_type)
    await setup.ping(f"{H}/")
    assert setup.published(f"{H}/") == [(content_type, body, None), (content_type, body + b" ", None)]


async def test_content_without_a_type_is_bytes(setup: Setup) -> None:
    setup.fetch.set(f"{H}/", b"\0\1")
    await setup.ping(f"{H}/")
    assert setup.published(f"{H}/") == [("application/octet-stream", b"\0\1", None)]


async def test_a_moved_topic_keeps_its_name_and_its_history(setup: Setup) -> None:
    kind = "application/atom+xml"
    setup.fetch.set(f"{H}/old", atom([Item("a")]), Content_Type=kind)
    await setup.ping(f"{H}/old")
    setup.fetch.set(f"{H}/old", status=308, Location=f"{S}/new")
    setup.fetch.set(f"{S}/new", atom([Item("b"), Item("a")]), Content_Type=kind)
    await setup.ping(f"{H}/old")
    assert setup.published(f"{H}/old")[1][2] == atom([Item("b")])  # entries seen at the old address are seen
    assert setup.published(f"{S}/new") == []
    await setup.ping(f"{H}/old")
    assert setup.fetch.urls == [f"{H}/old", f"{H}/old", f"{S}/new", f"{S}/new"]


async def test_a_moved_topic_is_asked_at_its_old_address_now_and_then_and_when_the_new_one_fails(setup: Setup) -> None:
    setup.fetch.set(f"{H}/old", status=301, Location="/new")
    setup.fetch.set(f"{H}/new", b"1", Content_Type="text/plain")
    await setup.ping(f"{H}/old")
    setup.now += CONFIG.permanent_redirect_trust + 1
    await setup.ping(f"{H}/old")
    assert setup.fetch.urls[2:] == [f"{H}/old", f"{H}/new"]
    setup.fetch.set(f"{H}/new", status=404)
    await setup.ping(f"{H}/old")
    setup.fetch.set(f"{H}/old", b"back", Content_Type="text/plain")
    await setup.ping(f"{H}/old")
    assert setup.fetch.urls[4:] == [f"{H}/new", f"{H}/old"]
    assert [body for _, body, _ in setup.published(f"{H}/old")] == [b"1", b"back"]


async def test_a_304_after_content_was_brought_along_is_not_possible(setup: Setup) -> None:
    setup.fetch.set(f"{H}/", b"1", Content_Type="text/plain", ETag='"1"')
    await setup.ping(f"{H}/")
    await setup.intake.offer(f"{H}/", Content("text/plain", b"2"), f"{H}/")
    await setup.ping(f"{H}/")  # the publisher went back to 1
    assert [body for _, body, _ in setup.published(f"{H}/")] == [b"1", b"2", b"1"]
    await setup.ping(f"{H}/")
    assert "If-None-Match" in setup.fetch.asked[-1].headers
    assert len(setup.published(f"{H}/")) == 3
