"""The other half of a publication's way: what the gateways of other domains recorded of it, if they let us look."""

import asyncio

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout

from gateway.admin.config import MAX_PEERS, AdminConfig
from gateway.telemetry.recorder import RecordedStep

PEER_SECONDS = 2.0
MAX_ANSWER = 512 * 1024


class PeerPath(msgspec.Struct, frozen=True):
    """Steps of one version at another gateway."""

    gateway: str
    version: str
    steps: list[RecordedStep]


class Peers:
    def __init__(self, config: AdminConfig) -> None:
        self._token = config.peer_token
        self._peers = list(config.peers)
        self._session: ClientSession | None = None
        self.failed = 0

    def add(self, peer: str) -> None:
        """For peers whose port is only known when they run."""
        if len(self._peers) < MAX_PEERS:
            self._peers.append(peer)

    async def ways(self, topic: str) -> list[PeerPath]:
        """Whoever does not answer in time is left out, and counted."""
        if not self._peers:
            return []
        answers = await asyncio.gather(*(self._ask(peer, topic) for peer in self._peers))
        return [way for answer in answers for way in answer]

    async def _ask(self, peer: str, topic: str) -> list[PeerPath]:
        if self._session is None:
            self._session = ClientSession(timeout=ClientTimeout(total=PEER_SECONDS))
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        url = peer.rstrip("/") + "/api/ways"
        try:
            async with self._session.get(
                url, params={"topic": topic}, headers=headers, allow_redirects=False
            ) as answer:
                if answer.status != 200:
                    self.failed += 1
                    return []
                body = await answer.content.read(MAX_ANSWER)
            return msgspec.json.decode(body, type=list[PeerPath])
        except (ClientError, TimeoutError, ValueError, msgspec.MsgspecError):
            self.failed += 1
            return []

    async def stop(self) -> None:
        if self._session is not None:
            await self._session.close()
