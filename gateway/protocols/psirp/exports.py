"""What this gateway publishes in the network, and by which name: kept in the gateway's store."""

import asyncio
from collections import OrderedDict
from functools import partial

from exchange.sqlite.rows import item_from
from identifiers import ItemId
from storage import Database, Transaction

REMEMBERED = 4_096


class ExportStore:
    """Items that are published in the network. Reads are immediate, from the last committed state."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._known: OrderedDict[ItemId, str] = OrderedDict()
        """Which adapter publishes an item, of those asked for last: every publication asks."""

    def exports(self, after: bytes, limit: int) -> list[ItemId]:
        rows = self.database.read("SELECT item FROM exports WHERE item > ? ORDER BY item LIMIT ?", (after, limit))
        return [item_from(item) for (item,) in rows]

    def is_export(self, item: ItemId) -> bool:
        return self.exporter(item) is not None

    def name_of(self, item: ItemId) -> str | None:
        """The name that this gateway publishes an item by."""
        rows = self.database.read("SELECT what FROM exports WHERE item = ?", (bytes(item),))
        return str(rows[0][0]) if rows else None

    def exporter(self, item: ItemId) -> str | None:
        """The adapter that publishes an item."""
        known = self._known.get(item)
        if known is not None:
            return known
        rows = self.database.read("SELECT adapter FROM exports WHERE item = ?", (bytes(item),))
        if not rows:
            return None
        self._known[item] = str(rows[0][0])
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return str(rows[0][0])

    async def export(self, item: ItemId, adapter: str, what: str) -> None:
        await asyncio.wrap_future(self.database.write(partial(_export, item, adapter, what)))

    async def unexport(self, item: ItemId) -> None:
        try:
            await asyncio.wrap_future(self.database.write(partial(_unexport, item)))
        finally:
            self._known.pop(item, None)


def _export(item: ItemId, adapter: str, what: str, tx: Transaction) -> None:
    tx.execute("INSERT OR IGNORE INTO exports VALUES (?, ?, ?)", (bytes(item), adapter, what))


def _unexport(item: ItemId, tx: Transaction) -> None:
    tx.execute("DELETE FROM exports WHERE item = ?", (bytes(item),))
