"""Ready-made answers to «who may subscribe to what, or ping it»: an operator may join them, or bring other ones.

Whoever is refused is told with `hub.mode=denied` and the reason.
"""

from collections.abc import Sequence

from push_hub.discovery import discover
from push_hub.intake.config import IntakeConfig
from push_hub.intake.ports import Fetch
from push_hub.intake.source import FetchFailedError, Validators, fetch_document
from push_hub.ports import PublisherPolicy, Validator
from push_hub.protocol.urls import UrlError, beginning, normalised


class OnlyTopics:
    """H15: topics below the given addresses and no others, to be subscribed to or pinged."""

    def __init__(self, prefixes: Sequence[str]) -> None:
        """Raises `UrlError`."""
        self._prefixes = tuple(beginning(prefix) for prefix in prefixes)

    async def refusal(self, topic: str, callback: str) -> str | None:
        return self._refusal(topic)

    def publisher_refusal(self, topic: str, client: str, *, token: bool) -> str | None:
        return self._refusal(topic)

    def _refusal(self, topic: str) -> str | None:
        return None if topic.startswith(self._prefixes) else "this hub does not serve this topic"


class OnlyOwnSelf:
    """H14: a topic must be what its document says its own address is; says nothing about documents that do not say."""

    def __init__(self, fetch: Fetch, config: IntakeConfig) -> None:
        self._fetch = fetch
        self._config = config

    async def refusal(self, topic: str, callback: str) -> str | None:
        try:
            fetched = await fetch_document(self._fetch, topic, Validators(), 0, self._config)
        except FetchFailedError as error:
            return f"the topic could not be read: {error.reason}"
        kind = fetched.headers.get("Content-Type") or ""
        own = discover(fetched.headers, kind, fetched.body or b"", fetched.url).self_url
        if own is None:
            return None
        try:
            own = normalised(own)
        except UrlError:
            return "the topic says something about its own address that is no URL"
        return None if own == topic else f"the topic's own address is {own}: subscribe to that"


class AllPublisherPolicies:
    """The first refusal counts."""

    def __init__(self, policies: Sequence[PublisherPolicy]) -> None:
        self._policies = tuple(policies)

    def publisher_refusal(self, topic: str, client: str, *, token: bool) -> str | None:
        reasons = (policy.publisher_refusal(topic, client, token=token) for policy in self._policies)
        return next((reason for reason in reasons if reason is not None), None)


class AllOf:
    """The first refusal counts."""

    def __init__(self, validators: Sequence[Validator]) -> None:
        self._validators = tuple(validators)

    async def refusal(self, topic: str, callback: str) -> str | None:
        for validator in self._validators:
            reason = await validator.refusal(topic, callback)
            if reason is not None:
                return reason
        return None
