"""Where the intake meets the rest of the hub: who fetches for it, and who takes what it found."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from push_hub.intake.feeds import Feed
from push_hub.model import Content, HubPublication
from storage import Transaction


class HeaderLookup(Protocol):
    """Response headers: names in any case, several values of one name kept apart."""

    def get(self, name: str, /) -> str | None: ...

    def get_all(self, name: str, /) -> Sequence[str]: ...


class FetchResponse(Protocol):
    """What a fetch gives back. `body` is as it came over the wire, possibly compressed."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> HeaderLookup: ...

    @property
    def body(self) -> bytes: ...


class FetchError(Exception):
    """No usable response; `reason` says why, in words for an operator."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Fetch(Protocol):
    """One HTTP exchange. Follows no redirect and decodes nothing; raises an exception with a `reason`.

    `counted` is asked before a connection is made, with the prefix of the address it would go to; False refuses it
    with `ShareTakenError`.
    """

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float,  # noqa: ASYNC109 - covers the whole exchange, and the port says so
        max_bytes: int,
        counted: Callable[[str], bool] | None = None,
    ) -> FetchResponse: ...


class FeedReader(Protocol):
    """Takes feeds apart, off the event loop."""

    async def read(self, topic: str, content_type: str, body: bytes) -> Feed | None:
        """None when the document is passed on whole. Raises `UnsafeXmlError`, nothing else."""

    def read_plain(self, topic: str, content_type: str, body: bytes) -> Feed | None:
        """What takes no time, here and now. None: `read` must be asked."""

    async def close(self) -> None: ...


class PublicationSink(Protocol):
    """Takes a new state of a topic; returns once it is on disk, and with it, in one transaction, what goes `along`."""

    async def accept(
        self, topic: str, self_url: str, content: Content, along: Callable[[Transaction], None] | None = None
    ) -> HubPublication: ...


MAX_REASON = 300


def reason_of(error: BaseException) -> str:
    """A short, printable reason of whatever a fetch raised."""
    text = getattr(error, "reason", None)
    if not isinstance(text, str) or not text:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return "".join(c if c.isprintable() else " " for c in text[:MAX_REASON])
