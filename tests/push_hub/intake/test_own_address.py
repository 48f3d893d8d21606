"""A document's word about its own address: what counts, what is looked at, and what a look may cost."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from push_hub.intake.config import IntakeConfig
from push_hub.intake.own_address import OwnAddresses
from push_hub.intake.ports import FetchError
from push_hub.intake.source import Fetched, Validators
from push_hub.intake.threads import Threads
from serving.outbound.errors import ShareTakenError
from tests.push_hub.intake.fetcher import Headers, TestResponse

TOPIC = "http://feeds.example/news"
OTHER = "https://www.example/news/"
BODY = b"<feed>1</feed>"


@dataclass
class Web:
    """Servers by URL; what is not there cannot be reached."""

    documents: dict[str, bytes] = field(default_factory=dict)
    locations: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    timeouts: list[float] = field(default_factory=list)
    full: bool = False
    now: float = 0.0

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float,  # noqa: ASYNC109
        max_bytes: int,
        counted: Callable[[str], bool] | None = None,
    ) -> TestResponse:
        self.asked.append(url)
        self.timeouts.append(timeout)
        assert counted is not None, "somebody else's server is asked: it must be counted there"
        if not counted("its network"):
            raise ShareTakenError("its network")
        if url in self.locations:
            return TestResponse(302, Headers([("Location", self.locations[url])]), b"")
        if url not in self.documents:
            raise FetchError("no connection could be made")
        return TestResponse(200, Headers(), self.documents[url])

    def addresses(self, **config: object) -> OwnAddresses:
        return OwnAddresses(self, IntakeConfig(**config), Threads(1), lambda: self.now)  # type: ignore[arg-type]

    async def believed(self, own: OwnAddresses, claimed: str | None, topic: str = TOPIC, read_from: str = "") -> str:
        fetched = Fetched(200, read_from or topic, Headers(), BODY, Validators(), None)
        return await own.believed(topic, claimed, fetched, lambda prefix: not self.full)


@pytest.mark.parametrize(
    ("claimed", "wanted"),
    [
        (None, TOPIC),
        (TOPIC, TOPIC),
        ("http://feeds.example/canonical", "http://feeds.example/canonical"),
        ("http://feeds.example:80/news", "http://feeds.example:80/news"),
    ],
)
async def test_a_document_speaks_for_its_own_origin(claimed: str | None, wanted: str) -> None:
    web = Web()
    assert await web.believed(web.addresses(), claimed) == wanted
    assert web.asked == []


@pytest.mark.parametrize(
    "claimed",
    [
        OTHER,
        "https://feeds.example/news",
        "http://feeds.example:8080/news",
        "http://feeds.example.evil/news",
        "http://www.feeds.example/news",
    ],
)
async def test_another_origin_counts_when_it_says_the_same_document(claimed: str) -> None:
    web = Web()
    own = web.addresses()
    assert await web.believed(own, claimed) == TOPIC
    web.now += 1e6
    web.documents[claimed] = b"<feed>something else</feed>"
    assert await web.believed(own, claimed) == TOPIC
    web.now += 1e6
    web.documents[claimed] = BODY
    assert await web.believed(own, claimed) == claimed
    # Once is not for ever: the next document may be another one's.
    web.documents[claimed] = b"<feed>2</feed>"
    assert await web.believed(own, claimed) == TOPIC


async def test_who_is_named_in_vain_is_asked_ever_more_rarely() -> None:
    web = Web()
    own = web.addresses()
    for _ in range(1000):
        await web.believed(own, OTHER)
        web.now += 60.0
    assert 2 <= len(web.asked) <= 6
    assert max(web.timeouts) <= 5.0
    other_topic = "http://feeds.example/other"
    await web.believed(own, OTHER, topic=other_topic)
    assert len(web.asked) <= 7


async def test_a_network_that_has_its_share_is_asked_next_time() -> None:
    web = Web({OTHER: BODY}, full=True)
    own = web.addresses()
    assert await web.believed(own, OTHER) == TOPIC
    web.full = False
    assert await web.believed(own, OTHER) == OTHER


async def test_where_the_topics_own_server_sent_us_is_believed() -> None:
    web = Web()
    assert await web.believed(web.addresses(), OTHER, read_from=OTHER) == OTHER
    assert web.asked == []


async def test_the_operator_joins_addresses() -> None:
    web = Web()
    own = web.addresses(aliases=(("http://feeds.example/", "https://www.example/"),))
    assert await web.believed(own, OTHER) == OTHER
    assert await web.believed(own, "https://www.example.evil/news/") == TOPIC
    assert web.asked == ["https://www.example.evil/news/"]


async def test_a_redirect_is_followed_when_the_other_address_is_looked_at() -> None:
    web = Web({"https://www.example/feed.xml": BODY}, {OTHER: "https://www.example/feed.xml"})
    assert await web.believed(web.addresses(), OTHER) == OTHER


async def test_looks_at_many_addresses_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("push_hub.intake.own_address.MAX_REMEMBERED", 10)
    web = Web()
    own = web.addresses()
    await asyncio.gather(*(web.believed(own, OTHER, topic=f"http://feeds.example/{n}") for n in range(50)))
    assert len(own._in_vain) == 10
