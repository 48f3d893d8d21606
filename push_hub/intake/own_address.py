"""What a document says its own address is, and whether that is believed: deliveries carry it as `rel=self`.

Whoever writes a document can write any address into it, so an address on another origin counts only

    when the operator says that the topics here and the addresses there are the same,
    when the topic's server sent us there by a redirect, or
    when that address was looked at for this very document, and gave the same bytes.

Otherwise deliveries carry the address that was subscribed to. A look costs one request, in the lane of the topic's own
fetch and counted where it goes; after one that found something else the next waits, ever longer.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from push_hub.intake.config import IntakeConfig
from push_hub.intake.ports import Fetch
from push_hub.intake.source import Fetched, FetchFailedError, Validators, fetch_document
from push_hub.intake.threads import Threads
from push_hub.xmlguard import UnsafeXmlError
from serving.outbound.errors import ShareTakenError
from storage.backoff import BackOff

LOOK_PAUSES = BackOff(3600.0, longest=86_400.0)
"""Seconds after a look that found another document."""
MAX_REMEMBERED = 16_384


@dataclass(slots=True)
class _Look:
    claimed: str
    failures: int
    again_at: float


class OwnAddresses:
    def __init__(self, fetch: Fetch, config: IntakeConfig, threads: Threads, clock: Callable[[], float]) -> None:
        self._fetch = fetch
        self._aliases = config.aliases
        self._config = replace(config, fetch_timeout=min(config.fetch_timeout, config.self_timeout))
        self._threads = threads
        self._clock = clock
        self._in_vain: OrderedDict[str, _Look] = OrderedDict()

    async def believed(
        self, topic: str, claimed: str | None, fetched: Fetched, counted: Callable[[str], bool] | None
    ) -> str:
        """The address under which this document of the topic is delivered."""
        if claimed is None or claimed == topic:
            return topic
        if origin_of(claimed) == origin_of(topic) or claimed == fetched.url or self._joins(topic, claimed):
            return claimed
        return claimed if await self._says_the_same(topic, claimed, fetched.body, counted) else topic

    def _joins(self, topic: str, claimed: str) -> bool:
        return any(topic.startswith(here) and claimed.startswith(there) for here, there in self._aliases)

    async def _says_the_same(
        self, topic: str, claimed: str, body: bytes | None, counted: Callable[[str], bool] | None
    ) -> bool:
        former = self._in_vain.get(topic)
        if former is not None and former.claimed == claimed and self._clock() < former.again_at:
            return False
        try:
            found = await fetch_document(self._fetch, claimed, Validators(), 0, self._config, self._threads, counted)
        except ShareTakenError:
            return False  # says nothing of the document: it is looked at with the next publication
        except (FetchFailedError, UnsafeXmlError):
            same = False
        else:
            same = found.body == body
        if same:
            self._in_vain.pop(topic, None)
        else:
            failures = 1 if former is None or former.claimed != claimed else former.failures + 1
            self._in_vain[topic] = _Look(claimed, failures, self._clock() + LOOK_PAUSES.wait(failures))
            self._in_vain.move_to_end(topic)
            if len(self._in_vain) > MAX_REMEMBERED:
                self._in_vain.popitem(last=False)
        return same


def origin_of(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    default = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname, parts.port or default
