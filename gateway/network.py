"""The information-centric network behind the control function: a client of a PSIRP node."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from gateway.envelope import ENVELOPE_VERSION, EnvelopeError, Header
from gateway.model import Crossing, Listener, NetworkError
from gateway.scope_keys import ScopeKeys
from identifiers import Identifier, ItemId
from psirp_stack.control.codes import Code
from psirp_stack.node.api import Client, ItemListener, NotAttachedError, PsirpError
from psirp_stack.node.attachment import ReceivedVersion, Why

LASTING = frozenset({Code.NOT_ALLOWED, Code.TOO_LARGE, Code.WRONG_IDS, Code.SCOPE_WITH_SAME_ID, Code.ITEM_WITH_SAME_ID})
"""Refusals that asking again does not change."""


class PsirpNetwork:
    """Every crossing is a version of its item, in an envelope."""

    def __init__(
        self,
        client: Client,
        socket: Path | None = None,
        admits: Callable[[Crossing, bytes | None], bool] | None = None,
        scope_keys: ScopeKeys | None = None,
    ) -> None:
        """`admits` says of a crossing and the hash of the key that signed it whether it is taken."""
        self.client = client
        self._admits = admits
        self._scope_keys = ScopeKeys() if scope_keys is None else scope_keys
        self._socket = socket
        """Where the node is, for looking at what it has at hand; without it, `recent` knows nothing."""
        self.unreadable = 0
        """Versions that no gateway put together, or that are not sealed as they should be: they are passed over."""
        self._subscriptions: dict[ItemId, ItemListener] = {}

    @property
    def matched(self) -> tuple[int, int]:
        """Of the items that are wanted here: for how many the rendezvous found a publisher, and how many there are."""
        told = [self.client.serving(item.sid, item.rid) for item in self._subscriptions]
        return sum(one is not None and one.publisher is not None for one in told), len(told)

    async def publish(self, item: ItemId, crossing: Crossing) -> Identifier:
        header = Header(ENVELOPE_VERSION, crossing.kind, crossing.name, crossing.content_type, crossing.self_url)
        try:
            return await self.client.publish(item.sid, item.rid, self._scope_keys.put_up(item, header, crossing.body))
        except (PsirpError, NotAttachedError) as error:
            raise _network_error(error) from error

    async def advertise(self, item: ItemId) -> None:
        try:
            await self.client.advertise(item.sid, item.rid)
        except (PsirpError, NotAttachedError) as error:
            raise _network_error(error) from error

    def is_wanted(self, item: ItemId) -> bool:
        return self.client.is_wanted(item.sid, item.rid)

    def watch_demand(self, listener: Callable[[ItemId, bool], None]) -> None:
        self.client.on_demand = listener

    async def withdraw(self, item: ItemId) -> None:
        try:
            await self.client.unpublish(item.sid, item.rid)
        except (PsirpError, NotAttachedError) as error:
            raise _network_error(error) from error

    async def subscribe(self, item: ItemId, listener: Listener, since: Identifier | None) -> None:
        async def take(publication: ReceivedVersion) -> None:
            crossing = self._opened(publication)
            if crossing is not None:
                await listener(crossing)

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

    async def recent(self, item: ItemId, since: Identifier | None) -> list[Crossing]:
        """Asked by an application of its own: the node tells one who comes late what it has, and the others nothing."""
        if self._socket is None:
            return []
        found: list[ReceivedVersion] = []
        try:
            async with await Client.attach(self._socket, application="gateway, looking back") as client:
                await client.subscribe(item.sid, item.rid, found.append, since=since)
                # The node answers in order: when this answer is here, everything that it had at hand is too.
                await client.status()
                await asyncio.sleep(0)
        except (PsirpError, NotAttachedError) as error:
            raise _network_error(error) from error
        return [crossing for publication in found if (crossing := self._opened(publication)) is not None]

    def _opened(self, publication: ReceivedVersion) -> Crossing | None:
        try:
            header, body = self._scope_keys.opened(_item_of(publication), publication.content)
        except EnvelopeError:
            self.unreadable += 1
            return None
        crossing = Crossing(
            header.kind,
            header.name,
            header.content_type,
            body,
            header.self_url,
            Identifier(publication.version),
            publication.published_ms,
            publication.hops,
        )
        if self._admits is not None and not self._admits(crossing, publication.signer):
            return None
        return crossing

    async def explain(self, item: ItemId) -> Why:
        try:
            return await self.client.explain(item.sid, item.rid)
        except (PsirpError, NotAttachedError) as error:
            raise _network_error(error) from error


def _item_of(publication: ReceivedVersion) -> ItemId:
    return ItemId(Identifier(publication.sid), Identifier(publication.rid))


def _network_error(error: PsirpError | NotAttachedError) -> NetworkError:
    lasting = isinstance(error, PsirpError) and error.code in LASTING
    return NetworkError(str(error), lasting=lasting)
