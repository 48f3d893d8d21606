"""The rules at the doors of a gateway: the hub's subscriptions and pings, other adapters, and the network."""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.access.rules import AccessRequest, AccessRules, Act, EntrySide
from gateway.model import NOBODY_KNOWN, Asker


@dataclass(frozen=True, slots=True)
class ArrivalRefused:
    """The network brought something that nobody may publish here."""

    name: str
    reason: str


class AccessGuard:
    """Is a `Validator` and a `PublisherPolicy` of the hub. `rules` may be replaced at any time."""

    def __init__(self, rules: AccessRules, observer: Callable[[object], None] | None = None) -> None:
        self.rules = rules
        self.refused = 0
        self._observer = observer

    # For the hub.

    async def refusal(self, topic: str, callback: str) -> str | None:
        return self._count(self.rules.refusal(AccessRequest(Act.SUBSCRIBE, topic, callback=callback)))

    def publisher_refusal(self, topic: str, client: str, *, token: bool) -> str | None:
        return self._count(self.rules.refusal(AccessRequest(Act.PUBLISH, topic, client=client, token=token)))

    # For other adapters.

    def other_refusal(self, act: Act, name: str, asker: Asker = NOBODY_KNOWN) -> str | None:
        return self._count(self.rules.refusal(AccessRequest(act, name, client=asker.client, token=asker.token)))

    # For the network.

    def admits(self, name: str, signer: bytes | None) -> bool:
        """Whether what another gateway published is taken here."""
        request = AccessRequest(
            Act.PUBLISH, name, EntrySide.NETWORK, signer=None if signer is None else signer.hex().lower()
        )
        reason = self._count(self.rules.refusal(request))
        if reason is not None and self._observer is not None:
            self._observer(ArrivalRefused(name, reason))
        return reason is None

    def _count(self, reason: str | None) -> str | None:
        self.refused += reason is not None
        return reason
