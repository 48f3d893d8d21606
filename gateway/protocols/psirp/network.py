"""The information-centric network behind the gateway: a client of a PSIRP node."""

from collections.abc import Callable

from exchange.model import Draft
from gateway.model import Crossing, Listener, NetworkError
from gateway.protocols.psirp.envelope import ENVELOPE_VERSION, EnvelopeError, Header, label, read_label
from gateway.protocols.psirp.scope_keys import ScopeKeys
from identifiers import Identifier, ItemId
from psirp_stack.control.codes import Code
from psirp_stack.node.api import Client, NotAttachedError, PsirpError
from psirp_stack.node.attachment import ReceivedVersion, Why
from psirp_stack.node.listeners import ItemListener

LASTING = frozenset({Code.NOT_ALLOWED, Code.TOO_LARGE, Code.WRONG_IDS, Code.SCOPE_WITH_SAME_ID, Code.ITEM_WITH_SAME_ID})
"""Refusals that asking again does not change."""


class PsirpNetwork:
    """Every crossing is a version of its item, in an envelope."""

    def __init__(
        self,
        client: Client,
        admits: Callable[[str, bytes | None], bool] | None = None,
        scope_keys: ScopeKeys | None = None,
    ) -> None:
        """`admits` says of a publication's name and the hash of the key that signed it whether it is taken."""
        self.client = client
        self._admits = admits
        self.scope_keys = ScopeKeys() if scope_keys is None else scope_keys
        """May be replaced at any time: what is under way opens as long as its key is among them."""
        self.unreadable = 0
        """Versions that no gateway put together, or that are not sealed as they should be: they are passed over."""
        self._subscriptions: dict[ItemId, ItemListener] = {}

    @property
    def matched(self) -> tuple[int, int]:
        """Of the items that are wanted here: for how many the rendezvous found a publisher, and how many there are."""
        told = [self.client.serving(item.sid, item.rid) for item in self._subscriptions]
        return sum(one is not None and one.publisher is not None for one in told), len(told)

    async def publish(self, draft: Draft) -> Identifier:
        header = Header(
            ENVELOPE_VERSION, draft.profile, draft.name, draft.content_type, draft.attributes, draft.deadline_ms
        )
        item = draft.item
        said = b"" if draft.origin is None else label(draft.origin, draft.known)
        try:
            return await self.client.publish(
                item.sid, item.rid, self.scope_keys.put_up(item, header, draft.body), attributes=said
            )
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

    def _opened(self, publication: ReceivedVersion) -> Crossing | None:
        item = _item_of(publication)
        try:
            header, body = self.scope_keys.opened(item, publication.content)
            origin, known = read_label(publication.attributes)
        except EnvelopeError:
            self.unreadable += 1
            return None
        if self._admits is not None and not self._admits(header.name, publication.signer):
            return None
        draft = Draft(
            item,
            header.name,
            header.profile,
            header.content_type,
            body,
            header.attributes,
            publication.published_ms,
            header.deadline_ms,
            origin,
            known,
        )
        return Crossing(draft, Identifier(publication.version), publication.hops)

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
