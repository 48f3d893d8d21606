"""What a document says that was not known before. Everything that grows with the document runs off the event loop."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from push_hub.discovery import is_xml, media_type
from push_hub.intake.feeds import Entry, Feed, PollHints, reduce_to, unseen
from push_hub.intake.ports import FeedReader
from push_hub.intake.store import IntakeStore, Source
from push_hub.intake.threads import Threads
from push_hub.model import Content
from push_hub.xmlguard import check_prolog

NO_FEEDS = frozenset({"application/xhtml+xml", "image/svg+xml"})


@dataclass(frozen=True, slots=True)
class Look:
    """A document compared with what was known of it. `new_entries` is None for other things than feeds."""

    content: Content
    changed: bool
    digest: bytes
    frame: bytes | None = None
    entries: Sequence[Entry] = ()
    new_entries: int | None = None
    hints: PollHints | None = None


class Looker:
    def __init__(self, store: IntakeStore, reader: FeedReader, threads: Threads) -> None:
        self._store = store
        self._reader = reader
        self._threads = threads

    async def look(self, topic: str, content: Content, source: Source) -> Look:
        """Compare with what was seen before. Raises `UnsafeXmlError`."""
        digest = await self._threads.run(_digest, content.body)
        whole = Look(content, digest != source.body_digest, digest)
        if not whole.changed:
            # The same bytes: nothing is new, whatever a parser would make of them.
            return replace(whole, frame=source.frame, new_entries=0 if source.frame else None)
        if not is_xml(content.content_type) or media_type(content.content_type) in NO_FEEDS:
            return whole
        await self._threads.run(check_prolog, content.body)
        feed = await self._reader.read(topic, content.content_type, content.body)
        if feed is None:
            return whole
        return await self._threads.run(self._compare, topic, whole, feed, source)

    def _compare(self, topic: str, whole: Look, feed: Feed, source: Source) -> Look:
        new = unseen(feed, self._store.seen(topic))
        return Look(
            replace(whole.content, changes=reduce_to(whole.content.body, feed, new)),
            bool(new) or feed.frame != source.frame,
            whole.digest,
            feed.frame,
            feed.entries,
            len(new),
            feed.hints,
        )


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()
