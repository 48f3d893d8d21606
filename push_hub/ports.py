"""What the protocol and the server need of the hub's other parts, and nothing more of them than that."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from push_hub.model import Content


class OverloadedError(Exception):
    """The hub cannot take this now; the sender should come back after `retry_after` seconds."""

    def __init__(self, retry_after: float, text: str = "the hub is busy") -> None:
        super().__init__(text)
        self.retry_after = retry_after
        self.text = text


class GetFailedError(Exception):
    """A GET that brought no answer at all; `reason` says why in words. `lasting`: it would bring none in a minute."""

    def __init__(self, reason: str, lasting: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.lasting = lasting


@dataclass(frozen=True, slots=True)
class GetResponse:
    status: int
    body: bytes


class Getter(Protocol):
    """Guarded GETs: never follows a redirect, refuses addresses the guard refuses."""

    async def get(
        self,
        url: str,
        *,
        timeout: float,  # noqa: ASYNC109 - a bound of the port
        max_bytes: int,
        counted: Callable[[str], bool] | None = None,
    ) -> GetResponse:
        """Raises `GetFailedError`.

        `counted` is asked before a connection is made, with the prefix of the address it would go to; False refuses
        it with `ShareTakenError`.
        """


class PingTaker(Protocol):
    """Where pings go. A call returns once what it was given is on disk."""

    async def ping(self, topics: Sequence[str], client: str = "") -> None:
        """`client`: whom it is charged to. Raises `OverloadedError`."""

    async def offer(self, topic: str, content: Content, self_url: str) -> None:
        """Content an allowed publisher brought along. Raises `OverloadedError`, or `RequestError` with the reason."""


class Elsewhere(Protocol):
    """What a hub that is joined to something bigger asks of it. Nothing here may block or raise."""

    def wants(self, topic: str) -> bool:
        """Whether somebody beyond this hub is subscribed, as far as is known. Called in the store's thread as well."""

    def pinged(self, topic: str) -> None:
        """A topic was pinged that nobody is known to want: the hub hears with `Hub.wanted` when somebody does."""

    def forgotten(self, topics: Sequence[str]) -> None:
        """Nothing is kept of these any more."""


class Nowhere:
    """`Elsewhere` of a hub that runs alone."""

    def wants(self, topic: str) -> bool:
        return False

    def pinged(self, topic: str) -> None:
        pass

    def forgotten(self, topics: Sequence[str]) -> None:
        pass


class Validator(Protocol):
    """The operator's policy on who may subscribe to what."""

    async def refusal(self, topic: str, callback: str) -> str | None:
        """Why this subscription is denied, or None."""


class PublisherPolicy(Protocol):
    """The operator's policy on who may say that a topic has news."""

    def publisher_refusal(self, topic: str, client: str, *, token: bool) -> str | None:
        """Why a request from the address `client` is refused, or None; `token`: it has a publisher's token."""
