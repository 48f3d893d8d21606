"""What the intake's tests put at its ports.

A bare aiohttp session without any guard; an origin in memory whose answers a test lets go one by one; the sink's table.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import aiohttp

from push_hub.intake.ports import FetchError
from push_hub.model import Content, HubPublication
from push_hub.ports import Nowhere
from storage import Database, Transaction


class Headers:
    def __init__(self, fields: Sequence[tuple[str, str]] = ()) -> None:
        self._fields = list(fields)

    def get(self, name: str, /) -> str | None:
        return next(iter(self.get_all(name)), None)

    def get_all(self, name: str, /) -> Sequence[str]:
        return [value for key, value in self._fields if key.lower() == name.lower()]


@dataclass(frozen=True, slots=True)
class TestResponse:
    __test__ = False
    status: int
    headers: Headers
    body: bytes


class AiohttpFetch:
    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float,  # noqa: ASYNC109
        max_bytes: int,
        counted: Callable[[str], bool] | None = None,
    ) -> TestResponse:
        try:
            async with self._session.request(
                method,
                url,
                headers=headers,
                data=body,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(timeout),
            ) as response:
                content = await response.content.read(max_bytes + 1)
                while len(content) <= max_bytes and (more := await response.content.read(max_bytes)):
                    content += more
                if len(content) > max_bytes:
                    raise FetchError(f"the answer is larger than {max_bytes} bytes")
                return TestResponse(response.status, Headers(list(response.headers.items())), content)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise FetchError(f"{type(error).__name__}: {error}") from error


class WantedElsewhere(Nowhere):
    """Somebody beyond the hub is subscribed to everything: what is pinged is fetched."""

    def wants(self, topic: str) -> bool:
        return True


class HeldFetch:
    """An origin in memory: a request reads the state at once, and gets its answer when the test lets it go."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}
        self.content_type = "text/plain"
        self.types: Mapping[str, str] = {}
        self.content_encoding = ""
        self.held: deque[asyncio.Event] = deque()
        self.holding = True
        self.requests = 0

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float,  # noqa: ASYNC109
        max_bytes: int,
        counted: Callable[[str], bool] | None = None,
    ) -> TestResponse:
        self.requests += 1
        fields = [("Content-Type", self.types.get(url, self.content_type))]
        if self.content_encoding:
            fields.append(("Content-Encoding", self.content_encoding))
        answer = TestResponse(200, Headers(fields), self.bodies[url])
        if self.holding:
            gate = asyncio.Event()
            self.held.append(gate)
            await gate.wait()
        return answer

    def let_go(self) -> None:
        """The oldest request that waits gets its answer."""
        if self.held:
            self.held.popleft().set()

    def stop_holding(self) -> None:
        self.holding = False
        while self.held:
            self.let_go()


@dataclass(frozen=True, slots=True)
class Asked:
    url: str
    headers: Mapping[str, str]


class ScriptedFetch:
    """An origin in memory that answers what the test set, or fails; 304 by itself when the validators match."""

    def __init__(self) -> None:
        self._answers: dict[str, TestResponse | Exception] = {}
        self.asked: list[Asked] = []

    def set(self, url: str, body: bytes = b"", status: int = 200, **fields: str) -> None:
        headers = Headers([(name.replace("_", "-"), value) for name, value in fields.items()])
        self._answers[url] = TestResponse(status, headers, body)

    def fail(self, url: str, reason: str) -> None:
        self._answers[url] = FetchError(reason)

    @property
    def urls(self) -> list[str]:
        return [asked.url for asked in self.asked]

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float,  # noqa: ASYNC109
        max_bytes: int,
        counted: Callable[[str], bool] | None = None,
    ) -> TestResponse:
        self.asked.append(Asked(url, dict(headers)))
        answer = self._answers[url]
        if isinstance(answer, Exception):
            raise answer
        for sent, given in (("If-None-Match", "ETag"), ("If-Modified-Since", "Last-Modified")):
            if headers.get(sent) is not None and headers[sent] == answer.headers.get(given):
                return TestResponse(304, answer.headers, b"")
        return answer


Along = Callable[[Transaction], None]


class LogSink:
    """The publications table, as the delivery part keeps it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def accept(self, topic: str, self_url: str, content: Content, along: Along | None = None) -> HubPublication:
        row = (topic, self_url, content.content_type, content.body, content.changes, 1.0)

        def work(tx: Transaction) -> int:
            ((number,),) = tx.execute(
                "INSERT INTO publications (topic, self_url, content_type, body, changes, accepted_at) "
                "VALUES (?, ?, ?, ?, ?, ?) RETURNING id",
                row,
            )
            if along is not None:
                along(tx)
            return int(number)

        return HubPublication(await self._database.transact(work), topic, self_url, content, 1.0)
