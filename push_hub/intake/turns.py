"""Who may change a topic's state next: fetches and fat pings of one topic, in the order of what they know.

A fetch takes long and must not hold up a publisher who brings content along, so it has its turn twice: a short one
before it asks the origin (everything brought before is stored by then, so the answer is at least as new) and one to
store what it found. Content that arrives in between may be newer than the answer under way: the fetch is then
overtaken, its answer is dropped and the topic is asked for again. Turns are taken first come, first served.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Turns:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class TopicTurns:
    """Holds something only for topics somebody is busy with."""

    def __init__(self) -> None:
        self._topics: dict[str, _Turns] = {}
        self._overtaken: dict[str, bool] = {}

    def __len__(self) -> int:
        return len(self._topics) + len(self._overtaken)

    @asynccontextmanager
    async def turn(self, topic: str) -> AsyncIterator[None]:
        turns = self._topics.setdefault(topic, _Turns())
        turns.users += 1
        try:
            async with turns.lock:
                yield
        finally:
            turns.users -= 1
            if not turns.users:
                del self._topics[topic]

    @asynccontextmanager
    async def fetching(self, topic: str) -> AsyncIterator[None]:
        """Around a fetch, from before its request until it is stored. One at a time for a topic."""
        async with self.turn(topic):
            self._overtaken[topic] = False
        try:
            yield
        finally:
            del self._overtaken[topic]

    def arrived(self, topic: str) -> None:
        """Somebody brought content along; called before they wait for their turn."""
        if topic in self._overtaken:
            self._overtaken[topic] = True

    def overtaken(self, topic: str) -> bool:
        return self._overtaken[topic]
