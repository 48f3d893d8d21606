"""The names that a gateway has come across, in a registry of its own: from ids back to names, and all below a place.

A name is noted when it is published or wanted here for the first time, beside what is done with it: nothing waits for
it, and what a kill loses is noted the next time. It has bounds, since anybody may want any name.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from identifiers import ItemId, Naming, NoZoneError, Topic, TopicError
from identifiers.order import key_of, range_below
from identifiers.registry import NamingMismatchError, OverlapError, Registry
from storage import StorageError

FILE_NAME = "names.sqlite"
MAX_NAMES = 1_000_000
RECENT = 20_000
WAITING = 5_000
TOGETHER_SECONDS = 1.0


class KnownNames:
    def __init__(
        self, path: Path, naming: Naming, stumbled: Callable[[str], None], together: float = TOGETHER_SECONDS
    ) -> None:
        self._registry = _opened(path, naming)
        self._stumbled = stumbled
        self._together = together
        self._recent: OrderedDict[str, None] = OrderedDict()
        self._waiting: dict[str, Topic] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self.left_out = 0
        """Names for which there was no room."""

    def note(self, name: str) -> None:
        """From the event loop; costs a look into a dictionary for a name that was noted lately."""
        if name in self._recent:
            return
        self._recent[name] = None
        if len(self._recent) > RECENT:
            self._recent.popitem(last=False)
        try:
            topic = Topic.parse(name)
            known = self._registry.by_topic(topic)
        except (TopicError, NoZoneError, StorageError):
            return  # another kind of name, or one without ids
        if known is not None and topic.transport in known.transports:
            return
        if len(self._waiting) >= WAITING or (known is None and self._registry.count() >= MAX_NAMES):
            self.left_out += 1
            del self._recent[name]
            return
        self._waiting[name] = topic
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._together, self._write)

    def of_item(self, item: ItemId) -> str | None:
        known = self._registry.by_item(item)
        return None if known is None else known.topic.url

    def below(self, place: str, limit: int) -> list[str]:
        """Names at or below a domain or an address, in the order of the hierarchy. Raises `TopicError`."""
        found = {key_of(known.topic): known.topic.url for known in islice(self._registry.below(place), limit)}
        first, end = range_below(place)
        late = {key_of(topic): topic.url for topic in self._waiting.values()}
        found |= {key: url for key, url in late.items() if first <= key < end}
        return [found[key] for key in sorted(found)][:limit]

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._write()
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)
        await asyncio.to_thread(self._registry.close)

    def _write(self) -> None:
        self._timer = None
        topics, self._waiting = list(self._waiting.values()), {}
        self._writing = asyncio.create_task(self._add(topics, self._writing))

    async def _add(self, topics: list[Topic], before: "asyncio.Task[None] | None") -> None:
        if before is not None:
            await asyncio.wait([before])
        try:
            await asyncio.wrap_future(self._registry.add_soon(topics))
        except OverlapError as error:
            # One of them; the others are noted one by one.
            self._stumbled(str(error))
            for topic in topics if len(topics) > 1 else ():
                await self._add([topic], None)
        except StorageError as error:
            self._stumbled(str(error))


def _opened(path: Path, naming: Naming) -> Registry:
    try:
        return Registry.open(path, naming)
    except NamingMismatchError:
        # The operator has chosen another naming: the names come again, with other ids.
        for part in path.parent.glob(f"{path.name}*"):
            part.unlink()
        return Registry.open(path, naming)
