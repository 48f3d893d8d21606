"""The control function: names become items, the operator's rules are asked, and the exchange does the rest.

An adapter subscribes and publishes here by name. A publication goes into the exchange's log once, durably; every
session of every adapter, the network among them, takes it from there at its own pace. What is wanted here and not
published here is brought by the sources.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from exchange.exchange import Exchange, TooManyInterestsError
from exchange.model import (
    CURRENT,
    FROM_NOW,
    Appended,
    Draft,
    Interest,
    ItemFullError,
    Mark,
    SessionInfo,
    SessionKey,
    Start,
)
from exchange.ports import Wanted
from exchange.selection import ANYTHING, Selector
from gateway.access.rules import Act
from gateway.converters.converters import AS_IT_IS, Converters
from gateway.model import (
    FOREVER,
    NOBODY_KNOWN,
    Adapter,
    Asker,
    ItemSubscription,
    NetworkError,
    NotAllowedError,
    RefusedError,
    Source,
)
from identifiers import ItemId

PAGE = 500


@dataclass(frozen=True, slots=True)
class ControlConfig:
    """Limits on what anybody may hold here."""

    max_per_subscriber: int = 10_000
    max_lease: float = 10 * 24 * 3600.0
    sweep_every: float = 5.0
    retry_base: float = 0.2
    retry_cap: float = 30.0


class Control:
    """Knows adapters and sources only by what `gateway.model` says of them."""

    def __init__(
        self,
        exchange: Exchange,
        clock: Callable[[], float],
        config: ControlConfig | None = None,
        refusal: Callable[[Act, str, Asker], str | None] | None = None,
        converters: Converters | None = None,
    ) -> None:
        """`refusal` says why somebody behind an adapter that keeps no rules itself may not do something."""
        self.exchange = exchange
        self.config = config if config is not None else ControlConfig()
        self.converters = Converters(exchange.log) if converters is None else converters
        self._refusal = refusal
        self._clock = clock
        self._sources: list[Source] = []
        self.note_name: Callable[[str], None] = lambda _: None
        """Told of each name that is published or wanted here; does not wait."""

    def add(self, adapter: Adapter, *, waited_for: bool = False) -> None:
        """Its sessions are handed what they lack from now on. `waited_for`: as in `Exchange.add`."""
        self.exchange.add(adapter, waited_for=waited_for)

    def add_source(self, source: Source) -> None:
        self._sources.append(source)

    @property
    def has_sources(self) -> bool:
        """Whether anything is brought from elsewhere."""
        return bool(self._sources)

    # For adapters.

    async def subscribe(
        self,
        adapter: Adapter,
        who: str,
        what: str,
        where: str = "",
        lease: float | None = None,
        start: Start = CURRENT,
        *,
        durable: bool = True,
        limited: bool = True,
        convert: str = AS_IT_IS,
        selector: Selector = ANYTHING,
    ) -> ItemSubscription:
        """Want a name, until the lease ends (None: until it is withdrawn). It is on disk when this returns, if it is
        `durable`. Raises `RefusedError`, also for what a converter cannot read as far as that is known now.

        Not `limited`: an adapter that stands for many and counts what each of them holds by itself.
        """
        item = adapter.item_of(what)
        if not adapter.keeps_rules:
            self.check(Act.SUBSCRIBE, what)
        if convert:
            reason = await self.converters.refusal(convert, what, item)
            if reason is not None:
                raise RefusedError(reason)
        until = FOREVER if lease is None else self._clock() + min(max(lease, 0.0), self.config.max_lease)
        interest = Interest(what, item, where, until, convert, selector)
        key = SessionKey(adapter.name, who)
        # What was brought and then not followed any more may be long out of date: whoever wants the current state waits
        # for the source to say which it is.
        unsure = [source for source in self._sources if start.current and await self._may_be_stale(item, source)]
        try:
            begin = FROM_NOW if unsure else start
            await self.exchange.subscribe(key, interest, begin, durable=durable, limited=limited)
        except TooManyInterestsError as error:
            raise RefusedError(str(error)) from None
        for source in self._sources:
            await source.follow(item, since_last=not start.current, key=key if source in unsure else None)
        self.note_name(what)
        return _subscription(key, interest, item)

    async def _may_be_stale(self, item: ItemId, source: Source) -> bool:
        if source.is_current(item):
            return False
        newest = await self.exchange.log.newest(Wanted(item))
        return newest is not None and newest.via == source.name

    async def unsubscribe(self, adapter: Adapter, who: str, what: str) -> bool:
        """No longer want a name; False when it was not wanted."""
        if not await self.exchange.unsubscribe(SessionKey(adapter.name, who), what):
            return False
        item = adapter.item_of(what)
        for source in self._sources:
            await source.follow(item, since_last=True)
        return True

    async def publish(
        self, adapter: Adapter, draft: Draft, asker: Asker = NOBODY_KNOWN, marks: Sequence[Mark] = ()
    ) -> Appended:
        """Take a publication that enters here; it is on disk when this returns, together with the marks.

        `NetworkError` when so much of the item waits for somebody that it cannot be taken now.
        """
        if not adapter.keeps_rules:
            self.check(Act.PUBLISH, draft.name, asker)
        if self.converters.owner(draft) not in (None, adapter.name):
            raise RefusedError(f"a message in {draft.content_type[:100]} would be taken for one of another protocol")
        self.note_name(draft.name)
        try:
            return await self.exchange.publish(replace(draft, origin=None, known=()), adapter.name, marks)
        except ItemFullError as error:
            raise NetworkError(str(error)) from None

    def check(self, act: Act, name: str, asker: Asker = NOBODY_KNOWN) -> None:
        """Raises `NotAllowedError` when the operator's rules forbid it."""
        reason = None if self._refusal is None else self._refusal(act, name, asker)
        if reason is not None:
            raise NotAllowedError(reason)

    # Who elsewhere wants what.

    async def advertise(self, item: ItemId) -> None:
        """Be known as a publisher of an item. Raises `NetworkError`."""
        for source in self._sources:
            await source.advertise(item)

    def is_wanted_elsewhere(self, item: ItemId) -> bool:
        """Whether somebody elsewhere is subscribed to an item that is advertised or published here."""
        return any(source.is_wanted(item) for source in self._sources)

    def watch_demand(self, listener: Callable[[ItemId, bool], None]) -> None:
        """`listener` is told when the first subscriber of such an item came, or the last went."""
        for source in self._sources:
            source.watch_demand(listener)

    async def withdraw(self, adapter: Adapter, item: ItemId) -> None:
        """Publish an item no longer, unless another adapter does. Raises `NetworkError`."""
        for source in self._sources:
            await source.withdraw_from(adapter.name, item)

    # For people.

    async def subscriptions(self, item: ItemId) -> list[ItemSubscription]:
        """Who wants an item by one of its names."""
        matching, _ = await self.exchange.router.matching(item)
        return [_subscription(key, interest, item) for key, interests in matching.items() for interest in interests]

    async def held(self, adapter: str) -> list[ItemSubscription]:
        """All that an adapter's sessions want."""
        return [
            _subscription(info.key, interest, interest.item)
            for info in await self._sessions(adapter)
            for interest in await self.exchange.interests(info.key)
            if interest.item is not None
        ]

    async def _sessions(self, adapter: str) -> list[SessionInfo]:
        found: list[SessionInfo] = []
        after = SessionKey(adapter, "")
        while page := [one for one in await self.exchange.listing(after, PAGE) if one.key.reader == adapter]:
            after = page[-1].key
            found += page
        return found


def _subscription(key: SessionKey, interest: Interest, item: ItemId) -> ItemSubscription:
    return ItemSubscription(key.reader, key.who, interest.name, interest.where, item, interest.until)
