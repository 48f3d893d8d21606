"""The information-centric network behind the control function: a client of a PSIRP node."""

from gateway.envelope import ENVELOPE_VERSION, EnvelopeError, Header, seal, unseal
from gateway.model import Crossing, Listener, NetworkError
from identifiers import Identifier, ItemId
from psirp_stack.control.codes import Code
from psirp_stack.node.api import Client, NotAttachedError, PsirpError, Subscription
from psirp_stack.node.attachment import Publication, Why

LASTING = frozenset({Code.NOT_ALLOWED, Code.TOO_LARGE, Code.WRONG_IDS, Code.SCOPE_WITH_SAME_ID, Code.ITEM_WITH_SAME_ID})
"""Refusals that asking again does not change."""


class PsirpNetwork:
    """Every crossing is a version of its item, in an envelope."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.unreadable = 0
        """Versions that no gateway put together, and that were passed over."""
        self._subscriptions: dict[ItemId, Subscription] = {}

    async def publish(self, item: ItemId, crossing: Crossing) -> Identifier:
        header = Header(ENVELOPE_VERSION, crossing.kind, crossing.name, crossing.content_type, crossing.self_url)
        try:
            return await self.client.publish(item.sid, item.rid, seal(header, crossing.body))
        except (PsirpError, NotAttachedError) as error:
            raise _network_error(error) from error

    async def advertise(self, item: ItemId) -> None:
        try:
            await self.client.advertise(item.sid, item.rid)
        except (PsirpError, NotAttachedError) as error:
            raise _network_error(error) from error

    async def withdraw(self, item: ItemId) -> None:
        try:
            await self.client.unpublish(item.sid, item.rid)
        except (PsirpError, NotAttachedError) as error:
            raise _network_error(error) from error

    async def subscribe(self, item: ItemId, listener: Listener, since: Identifier | None) -> None:
        async def take(publication: Publication) -> None:
            try:
                header, body = unseal(publication.content)
            except EnvelopeError:
                self.unreadable += 1
                return
            await listener(
                Crossing(
                    header.kind,
                    header.name,
                    header.content_type,
                    body,
                    header.self_url,
                    Identifier(publication.version),
                    publication.published_ms,
                )
            )

        try:
            self._subscriptions[item] = await self.client.subscribe(item.sid, item.rid, take, since=since)
        except (PsirpError, NotAttachedError) as error:
            raise _network_error(error) from error

    async def unsubscribe(self, item: ItemId) -> None:
        subscription = self._subscriptions.pop(item, None)
        if subscription is None:
            return
        try:
            await self.client.unsubscribe(subscription)
        except (PsirpError, NotAttachedError) as error:
            raise _network_error(error) from error

    async def explain(self, item: ItemId) -> Why:
        try:
            return await self.client.explain(item.sid, item.rid)
        except (PsirpError, NotAttachedError) as error:
            raise _network_error(error) from error


def _network_error(error: PsirpError | NotAttachedError) -> NetworkError:
    lasting = isinstance(error, PsirpError) and error.code in LASTING
    return NetworkError(str(error), lasting=lasting)
