"""Who may change a topic's state next: fetches and fat pings of one topic, in the order of what they know.

A fetch takes long and must not hold up a publisher who brings content along, so it has its turn twice: a short one
before it asks the origin (everything brought before is stored by then, so the answer is at least as new) and one to
store what it found. Content that arrives in between may be newer than the answer under way: the fetch is then
overtaken, its answer is dropped and the topic is asked for again. Turns are taken first come, first served.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager


class _Turns:
    """Of one topic. Written out as a context, because a publication enters three."""

    __slots__ = ("_lock", "_topic", "_topics", "_users")

    def __init__(self, topic: str, topics: "dict[str, _Turns]") -> None:
        self._topic = topic
        self._topics = topics
        self._lock = asyncio.Lock()
        self._users = 0

    async def __aenter__(self) -> None:
        self._users += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
        self._leave()

    def _leave(self) -> None:
        self._users -= 1
        if not self._users:
            del self._topics[self._topic]


class TopicTurns:
    """Holds something only for topics somebody is busy with."""

    def __init__(self) -> None:
        self._topics: dict[str, _Turns] = {}
        self._overtaken: dict[str, bool] = {}

    def __len__(self) -> int:
        return len(self._topics) + len(self._overtaken)

    def turn(self, topic: str) -> AbstractAsyncContextManager[None]:
        """To be entered at once."""
        turns = self._topics.get(topic)
        if turns is None:
            turns = self._topics[topic] = _Turns(topic, self._topics)
        return turns

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
