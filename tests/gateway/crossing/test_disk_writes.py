"""What a crossing publication costs the disks of both gateways: commits and copies, counted in what SQLite wrote."""

import secrets
import socket
import sqlite3
import struct
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import ClientSession

from gateway.gateway import Gateway, gateway_config
from psirp_stack.node.config import DomainFile, LinkFile, NodeFile, NodeRole, TimesFile
from push_hub.canary import CanaryConfig
from push_hub.hub import HubConfig
from tests.gateway.crossing.test_crossing import Publisher, Subscriber
from tests.waiting import until

PUBLICATIONS = 10
PAGE = 4096
SMALL_PAGES = 16
"""Of a commit: rows and indices beside the body."""
BOUNDS = {
    "a hub": (3.0, 1),
    "a gateway": (1.5, 1),
    "b hub": (3.0, 1),
    "b gateway": (1.5, 1),
    "b versions": (1.5, 1),
}
"""For a publication from b to a, of each store: commits at most, and copies of the body. A commit in a hub is what was
accepted; what was delivered is written for many at once, with the next one or in up to two of its own. No other store
is written to."""
HEAD = struct.Struct("!4xII4x8s8x")
"""Of a write-ahead log: version, size of a page, salts."""
FRAME = struct.Struct("!II8s8x")
"""Of a page in it: its number, the size of the database if a commit ends here, salts."""


@dataclass(frozen=True)
class Written:
    """What stands in the write-ahead log of a store: each commit was waited for until it was on disk."""

    commits: int
    pages: bytes

    @classmethod
    def of(cls, store: Path) -> "Written":
        log = store.with_name(f"{store.name}-wal").read_bytes()
        if not log:
            return cls(0, b"")
        _, page, salts = HEAD.unpack_from(log)
        commits, pages = 0, []
        for start in range(HEAD.size, len(log) - FRAME.size - page + 1, FRAME.size + page):
            _, ends_commit, salts_of_frame = FRAME.unpack_from(log, start)
            if salts_of_frame != salts:
                break
            commits += bool(ends_commit)
            pages.append(log[start + FRAME.size : start + FRAME.size + page])
        return cls(commits, b"".join(pages))


def begin(store: Path) -> None:
    """Empty the write-ahead log: what stands in it later is what came later."""
    with closing(sqlite3.connect(store)) as connection:
        ((busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        assert not busy


class Pair:
    """Two gateways, each with a node of its own, and the link between them."""

    def __init__(self, data: Path, http: ClientSession) -> None:
        self.data = data
        self.http = http
        with ExitStack() as stack:
            ends = [stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)) for _ in "ab"]
            for end in ends:
                end.bind(("127.0.0.1", 0))
            self._addresses = [f"127.0.0.1:{end.getsockname()[1]}" for end in ends]

    @asynccontextmanager
    async def gateway(self, name: str) -> AsyncIterator[Gateway]:
        own, peer = self._addresses if name == "a" else self._addresses[::-1]
        node = NodeFile(
            name=name,
            roles=tuple(NodeRole) if name == "b" else (),
            data=str(self.data / name / "node"),
            links=(LinkFile(udp=own, peer=peer),),
            times=TimesFile(hello=0.1),
            domain=DomainFile(rendezvous=("b",), topology=("b",)),
        )
        hub = HubConfig(self.data / name / "hub", allow_private=True, canary=CanaryConfig(enabled=False))
        gateway = Gateway(gateway_config(self.data / name, hub, node=node))
        await gateway.start()
        try:
            yield gateway
        finally:
            await gateway.stop()

    def stores(self, name: str) -> dict[str, Path]:
        return {store.stem: store for store in sorted((self.data / name).rglob("*.sqlite"))}


def document(size: int) -> tuple[bytes, bytes]:
    """A feed with one entry that nobody has seen, and the word for it."""
    word = secrets.token_hex(8)
    text = "\n".join(f"{word} {number:08}" for number in range(size // 26))
    entry = f"<entry><id>urn:{word}</id><title>{word}</title><content>{text}</content></entry>"
    return word.encode(), f'<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:feed</id>{entry}</feed>'.encode()


@pytest.mark.parametrize("size", [1_400, 40_000])
async def test_what_a_crossing_publication_costs_each_store(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What nobody waits for shares the next commit; on a machine that is busy it would not wait for that so long.
    monkeypatch.setattr("exchange.sqlite.sessions.MOVES_WAIT", 3600.0)
    monkeypatch.setattr("exchange.sqlite.log.MARKS_WAIT", 3600.0)
    async with ClientSession() as http, Publisher() as publisher, Subscriber() as subscriber:
        pair = Pair(tmp_path, http)
        async with pair.gateway("b") as b, pair.gateway("a") as a:
            form = {"hub.mode": "subscribe", "hub.topic": publisher.topic, "hub.callback": subscriber.callback}
            async with http.post(a.hub.url, data=form) as answer:
                assert answer.status == 202, await answer.text()
            await until(lambda: a.hub.subscriptions.count(publisher.topic))

            async def publish() -> bytes:
                word, publisher.body = document(size)
                async with http.post(b.hub.url, data={"hub.mode": "publish", "hub.url": publisher.topic}) as answer:
                    assert answer.status in (202, 204), await answer.text()
                await until(lambda: subscriber.received and subscriber.received[-1][1] == publisher.body)
                return word

            await publish()
            stores = {f"{name} {kind}": store for name in "ab" for kind, store in pair.stores(name).items()}
            for store in stores.values():
                begin(store)
            words = [await publish() for _ in range(PUBLICATIONS)]
            for label, store in stores.items():
                written = Written.of(store)
                copies = sum(written.pages.count(word) for word in words) / len(words) / publisher.body.count(words[-1])
                commits, most_copies = BOUNDS.get(label, (0.5, 0))
                assert written.commits <= commits * len(words), label
                if size > PAGE:
                    assert copies == pytest.approx(most_copies, abs=0.05), label
                    assert len(written.pages) <= (most_copies * size + SMALL_PAGES * PAGE) * len(words), label
            assert set(BOUNDS) <= set(stores)
