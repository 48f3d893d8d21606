"""The converters that a session can read an item through, and feeds of what the log has.

| name | from | to |
|---|---|---|
| `entries` | documents | messages: the entries of a feed that are new in it |
| `feed` | messages, events | a document: an Atom feed of the last ones |
| `json` | anything | a JSON object, for programs |
"""

import base64
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

import msgspec

from exchange.model import Draft, LogEntry, Profile
from exchange.ports import Log, Wanted
from exchange.selection import ANYTHING, Selector
from exchange.selection.attributes import attributes_of
from gateway.converters.addresses import FeedAddresses
from gateway.converters.entries import new_entries
from gateway.converters.feeds import ATOM_TYPE, JSON_TYPE, FeedHead, FeedItem, atom_feed, json_feed
from gateway.converters.readable import (
    AUTHOR,
    TITLE,
    Readable,
    Readers,
    essence,
    is_for_everybody,
    readable_of,
    text_of,
)
from identifiers import ItemId

AS_IT_IS: Final = ""
ENTRIES: Final = "entries"
FEED: Final = "feed"
JSON: Final = "json"
CONVERTERS: Final = {
    ENTRIES: frozenset({Profile.DOCUMENT}),
    FEED: frozenset({Profile.MESSAGE, Profile.EVENT}),
    JSON: frozenset(Profile),
}
"""From which profiles each reads."""
ITEMS_OF_A_FEED: Final = 50
FEED_BYTES: Final = 4 * 1024 * 1024
APART_KEPT: Final = 64
MESSAGE_TYPE: Final = "text/plain; charset=utf-8"


class FeedForm(StrEnum):
    ATOM = "atom"
    JSON = "json"

    @property
    def content_type(self) -> str:
        return ATOM_TYPE if self is FeedForm.ATOM else JSON_TYPE


class Converters:
    def __init__(
        self,
        log: Log,
        readers: Readers | None = None,
        owners: Mapping[str, str] | None = None,
        addresses: FeedAddresses | None = None,
        hub_url: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`owners` says of which protocol each type of `readers` is; `hub_url`, where a feed's address can be
        subscribed to."""
        self.addresses = FeedAddresses() if addresses is None else addresses
        self._log = log
        self._readers: Readers = {} if readers is None else readers
        self._owners: Mapping[str, str] = {} if owners is None else owners
        self._hub_url = hub_url
        self._apart: OrderedDict[int, list[Readable] | None] = OrderedDict()
        """Documents that were taken apart, by their place in the log: once, however many read them."""

    def is_for_everybody(self, draft: Draft) -> bool:
        """Whether somebody who only knows the name may see it."""
        return is_for_everybody(draft, self._readers)

    def owner(self, draft: Draft) -> str | None:
        """Whose form a message has: nobody else may publish it."""
        return self._owners.get(essence(draft.content_type)) if draft.profile is Profile.MESSAGE else None

    async def refusal(self, how: str, name: str, item: ItemId) -> str | None:
        """Why what is published by a name cannot be read through a converter, as far as that is known now."""
        if how not in CONVERTERS:
            return f"there is no converter {how[:40]!r}: expected {', '.join(CONVERTERS)}"
        newest = await self._log.newest(Wanted(item))
        if newest is None:
            return None
        profile = newest.draft.profile
        if profile not in CONVERTERS[how]:
            taken = " and ".join(sorted(f"{one}s" for one in CONVERTERS[how]))
            return f"{name[:200]} has {profile}s, and {how} is made of {taken}: follow it as it is"
        if how == ENTRIES and await self._taken_apart(newest) is None:
            return f"{name[:200]} is no plain Atom or RSS feed ({newest.draft.content_type}): follow it as it is"
        return None

    async def convert(self, entry: LogEntry, how: str, selector: Selector = ANYTHING) -> list[Draft]:
        """What a session is handed instead of an entry; nothing when it holds nothing for it. Of a feed's entries each
        is selected by itself."""
        draft = entry.draft
        if not self.is_for_everybody(draft) or (how and draft.profile not in CONVERTERS[how]):
            return []
        if how == ENTRIES:
            return [one for one in await self._messages(entry) if _is_selected(one, selector)]
        if not _is_selected(draft, selector):
            return []
        if how == FEED:
            return [await self.feed(draft.item, draft.name, self.addresses.of(draft.name), upto=entry.position)]
        return [self._as_json(entry)] if how == JSON else [draft]

    async def feed(
        self,
        item: ItemId,
        name: str,
        self_url: str | None,
        form: FeedForm = FeedForm.ATOM,
        upto: int | None = None,
    ) -> Draft:
        """What was published by a name, as a feed. Its newest is told by `published_ms`."""
        entries = await self._log.latest(Wanted(item), ITEMS_OF_A_FEED, FEED_BYTES, upto)
        items = [
            FeedItem(
                entry.origin,
                entry.draft.published_ms,
                readable,
                entry.draft.content_type,
                entry.draft.body if not readable.text and text_of(entry.draft) is None else None,
            )
            for entry in entries
            for readable in [readable_of(entry.draft, self._readers)]
            if readable is not None
        ]
        head = FeedHead(str(item), name, self_url, self._hub_url())
        body = atom_feed(head, items) if form is FeedForm.ATOM else json_feed(head, items)
        newest = max((one.published_ms for one in items), default=0)
        return Draft(item, name, Profile.DOCUMENT, form.content_type, body, published_ms=newest)

    async def _messages(self, entry: LogEntry) -> list[Draft]:
        draft = entry.draft
        found = await self._taken_apart(entry)
        if found is None:
            link = draft.attribute("self") or draft.name
            found = [Readable(f"{draft.name} has changed", link, link=link)]
        return [
            replace(
                draft,
                profile=Profile.MESSAGE,
                content_type=MESSAGE_TYPE,
                body=(one.text or one.title).encode(),
                attributes=(
                    *(
                        (key, value)
                        for key, value in ((TITLE, one.title), (AUTHOR, one.author), ("self", one.link), ("id", one.id))
                        if value
                    ),
                    *one.others,
                ),
            )
            for one in found
        ]

    async def _taken_apart(self, entry: LogEntry) -> list[Readable] | None:
        if entry.position in self._apart:
            self._apart.move_to_end(entry.position)
            return self._apart[entry.position]
        draft = entry.draft
        before = await self._log.latest(Wanted(entry.item), 1, FEED_BYTES, entry.position - 1)
        old, old_type = (before[0].draft.body, before[0].draft.content_type) if before else (b"", "")
        found = new_entries(draft.body, draft.content_type, old, old_type)
        self._apart[entry.position] = found
        if len(self._apart) > APART_KEPT:
            self._apart.popitem(last=False)
        return found

    def _as_json(self, entry: LogEntry) -> Draft:
        draft = entry.draft
        said = readable_of(draft, self._readers)
        told: dict[str, Any] = {
            "name": draft.name,
            "origin": str(entry.origin),
            "profile": draft.profile,
            "type": draft.content_type,
            "published_ms": draft.published_ms,
            "attributes": dict(draft.attributes),
        }
        if said is not None:
            told |= {"title": said.title, "author": said.author, "link": said.link}
        text = text_of(draft)
        told |= {"base64": base64.b64encode(draft.body).decode("ascii")} if text is None else {"text": text}
        return replace(draft, content_type="application/json", body=msgspec.json.encode(told))


def _is_selected(draft: Draft, selector: Selector) -> bool:
    return not selector.predicates or selector.matches(attributes_of(draft))
