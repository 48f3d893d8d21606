"""A store that the gateway wrote before it had an exchange: nothing that somebody was to get is lost, or comes twice.

`stores/before_the_exchange.sql` is a dump of what that version had on disk when it was stopped: two subscriptions of an
adapter, one of an open stream, a version that everybody had, one that nobody could be given yet, an item of its own.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from exchange.model import Draft, OriginId, Profile, SessionKey
from gateway.protocols.psirp.exports import ExportStore
from tests.gateway.crossing.test_gateway_durability import FAR, Kept, version_of
from tests.waiting import until

DUMP = Path(__file__).parent / "stores" / "before_the_exchange.sql"


async def test_a_store_of_the_version_before_is_taken_up_where_it_was(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "control.sqlite")) as connection:
        connection.executescript(DUMP.read_text())
    async with Kept(tmp_path) as kept:
        alice, bob = kept.adapter.item_of("alice"), kept.adapter.item_of("bob")
        await until(lambda: kept.adapter.taken == [b"waits"])
        await until(lambda: len(kept.network.since) == 2)
        assert kept.network.since == {alice: version_of(b"waits"), bob: version_of(b"taken")}
        held = await kept.control.held("fake")
        assert [(one.who, one.what, one.where, one.until) for one in held] == [
            ("me", "alice", "", 1e12),
            ("me", "bob", "left", 1500.0),
        ]
        assert await kept.exchange.interests(SessionKey("stream", "s1")) == []
        assert await kept.exchange.log.mark("websub", "") == 6
        assert await kept.exchange.log.mark("websub", "carol") == 7
        assert ExportStore(kept.database).is_export(kept.adapter.item_of("carol"))
        # Nothing that was brought goes out again, and everything goes on.
        await kept.bring("bob", b"taken")
        await kept.bring("bob", b"next", OriginId(FAR, 1))
        await kept.control.publish(kept.adapter, Draft(bob, "bob", Profile.DOCUMENT, "text/plain", b"own"))
        await until(lambda: kept.adapter.taken == [b"waits", b"next", b"own"])
        await until(lambda: [draft.body for draft in kept.network.published] == [b"own"])
        kept.now = 2000.0
        await until(lambda: set(kept.network.listeners) == {alice})
