"""What a document says that was not known before. Everything that grows with the document runs off the event loop."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from push_hub.discovery import is_xml, media_type
from push_hub.intake.feeds import Feed, FeedEntry, PollHints, reduce_to, unseen
from push_hub.intake.ports import FeedReader
from push_hub.intake.store import FetchSource, IntakeStore
from push_hub.intake.threads import Threads
from push_hub.model import Content
from push_hub.xmlguard import check_prolog

NO_FEEDS = frozenset({"application/xhtml+xml", "image/svg+xml"})


@dataclass(frozen=True, slots=True)
class Inspection:
    """A document compared with what was known of it. `new_entries` is None for other things than feeds."""

    content: Content
    changed: bool
    digest: bytes
    frame: bytes | None = None
    entries: Sequence[FeedEntry] = ()
    new_entries: int | None = None
    known_entries: int | None = None
    """How many had been seen before; of feeds."""
    hints: PollHints | None = None


class DocumentInspector:
    def __init__(self, store: IntakeStore, reader: FeedReader, threads: Threads) -> None:
        self._store = store
        self._reader = reader
        self._threads = threads

    async def look(self, topic: str, content: Content, source: FetchSource) -> Inspection:
        """Compare with what was seen before. Raises `UnsafeXmlError`."""
        whole = await self.inspect_bytes(content, source)
        return await self.take_apart(topic, whole, source) if whole.changed else whole

    async def inspect_bytes(self, content: Content, source: FetchSource) -> Inspection:
        """Are these other bytes than before, and safe to pass on? Raises `UnsafeXmlError`."""
        digest = await self._threads.run_on(content.body, _digest, content.body)
        if digest == source.body_digest:
            # The same bytes: nothing is new, whatever a parser would make of them.
            return Inspection(content, False, digest, source.frame, new_entries=0 if source.frame else None)
        if _may_be_feed(content):
            await self._threads.run_on(content.body, check_prolog, content.body)
        return Inspection(content, True, digest)

    def take_apart_plain(self, topic: str, whole: Inspection, source: FetchSource) -> Inspection | None:
        """The same without waiting, where that is possible."""
        content = whole.content
        feed = self._reader.read_plain(topic, content.content_type, content.body) if _may_be_feed(content) else None
        return None if feed is None else self._compare(topic, whole, feed, source)

    async def take_apart(self, topic: str, whole: Inspection, source: FetchSource) -> Inspection:
        """What is new in a document that was glanced at. Raises `UnsafeXmlError`."""
        content = whole.content
        if not _may_be_feed(content):
            return whole
        feed = await self._reader.read(topic, content.content_type, content.body)
        if feed is None:
            return whole
        return await self._threads.run_on(content.body, self._compare, topic, whole, feed, source)

    def _compare(self, topic: str, whole: Inspection, feed: Feed, source: FetchSource) -> Inspection:
        seen = self._store.seen(topic)
        new = unseen(feed, seen)
        content = whole.content
        # A document that is all new has nothing to be left out: it is not kept twice.
        changes = None if len(new) == len(feed.entries) else reduce_to(content.body, feed, new)
        return Inspection(
            Content(content.content_type, content.body, changes, content.brought),
            bool(new) or feed.frame != source.frame,
            whole.digest,
            feed.frame,
            feed.entries,
            len(new),
            len(seen),
            feed.hints,
        )


def _may_be_feed(content: Content) -> bool:
    return is_xml(content.content_type) and media_type(content.content_type) not in NO_FEEDS


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()
