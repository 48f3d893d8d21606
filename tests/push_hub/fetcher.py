"""A test's way to the network: the intake's fetch port on a bare aiohttp session, without any guard."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import aiohttp

from push_hub.intake.ports import FetchError


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
