"""What others publish, for the broker's clients: two sessions of the exchange that stand for all of them.

One wants the topics that clients ask for by name, so that the network brings them; the other hears everything that
enters here, for filters with wildcards. What they are handed is in the queues of durable sessions before the exchange
goes on.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from exchange.model import FROM_NOW, Interest, LogEntry, Profile, SessionKey
from exchange.patterns import has_wildcard
from gateway.control import Control
from gateway.model import NetworkError, RefusedError
from gateway.protocols.mqtt.broker import MqttBroker
from gateway.protocols.mqtt.drafts import message_from
from gateway.protocols.mqtt.names import TopicNames
from gateway.protocols.mqtt.store import LABEL, BrokerStore
from gateway.protocols.mqtt.texts import split_shared
from identifiers import ItemId, Naming, TopicError
from identifiers.namespaces import Namespaces

BY_NAME = "topics"
EVERYTHING = "everything"


class MqttAdapter:
    name = LABEL
    hears_own = False
    """The broker's own clients have it at once."""
    keeps_rules = True

    def __init__(
        self,
        broker: MqttBroker,
        store: BrokerStore,
        names: TopicNames,
        naming: Naming,
        namespaces: Namespaces,
        control: Control,
        woken: Callable[[], None],
    ) -> None:
        """`woken`: there is work for the broker's runner."""
        self._broker = broker
        self._store = store
        self._names = names
        self._naming = naming
        self._namespaces = namespaces
        self._control = control
        self._woken = woken
        self._followed: dict[str, ItemId] = {}
        """By their names, as clients here call them."""
        self._changed: set[str] = set()
        self._has_changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self.taken = 0
        """Publications of others that clients here were given."""

    async def start(self) -> None:
        control = self._control
        control.add(self)
        key = SessionKey(self.name, EVERYTHING)
        await control.exchange.subscribe(key, Interest("*", None), FROM_NOW)
        wanted = {one for one in map(_by_name, self._broker.filters()) if one}
        held = [one for one in await control.held(self.name) if one.who == BY_NAME]
        for one in held:
            topic = self._names.topic_of(one.what)
            if topic in wanted:
                self._followed[topic] = one.item
            else:
                await control.unsubscribe(self, BY_NAME, one.what)
        self._following = asyncio.create_task(self._follow())
        self.filters_changed(wanted - set(self._followed))

    async def stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    def item_of(self, what: str) -> ItemId:
        try:
            return self._namespaces.read(what).item(self._naming)
        except TopicError as error:
            raise RefusedError(str(error)) from None

    def filters_changed(self, filters: set[str]) -> None:
        by_name = {one for one in map(_by_name, filters) if one}
        if by_name:
            self._changed |= by_name
            self._has_changed.set()

    async def _follow(self) -> None:
        """Want exactly what clients ask for by name."""
        while True:
            await self._has_changed.wait()
            self._has_changed.clear()
            changed, self._changed = self._changed, set()
            for topic in sorted(changed):
                if not self._needs_network(topic):
                    continue
                with contextlib.suppress(RefusedError, NetworkError, TopicError):
                    await self._follow_one(topic)

    def _needs_network(self, topic: str) -> bool:
        """Whether it can come from elsewhere: what enters here is heard anyway."""
        return self._control.has_sources or topic.startswith("$")

    async def _follow_one(self, topic: str) -> None:
        name, item = self._names.of_topic(topic)
        asked = self._broker.routes.is_asked(topic)
        if asked and topic not in self._followed:
            self._followed[topic] = item
            await self._control.subscribe(self, BY_NAME, name)
        elif not asked and topic in self._followed:
            del self._followed[topic]
            await self._control.unsubscribe(self, BY_NAME, name)

    async def deliver(self, key: SessionKey, entry: LogEntry, interests: Sequence[Interest]) -> None:
        is_by_name = key.who == BY_NAME
        topic = self._names.topic_of(entry.draft.name)
        for interest in interests:
            if is_by_name:
                topic = self._names.topic_of(interest.name)
        if not is_by_name and (entry.item in self._followed.values() or entry.draft.profile is Profile.MESSAGE):
            return
        route = self._broker.routes.of(topic)
        message = message_from(entry, topic)
        if not (route.targets or route.groups or message.retain):
            return
        if self._store.taken(entry.item) >= entry.position:
            return  # a kill came between the queues and the cursor
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def then(count: int) -> None:
            if not done.done():
                done.set_result(count)

        self._broker.publish(message, then, from_log=(bytes(entry.item).hex(), entry.position))
        self._woken()
        self.taken += bool(await done)


def _by_name(wanted: str) -> str:
    """The topic that a filter names; empty for one with wildcards, and for the broker's own figures."""
    pattern = split_shared(wanted)[1]
    return "" if has_wildcard(pattern) or pattern.startswith("$SYS") else pattern
