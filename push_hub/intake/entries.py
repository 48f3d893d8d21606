"""What a feed's entries are: the exact parser says who each one is, what it says and where; feedparser must agree.

feedparser knows the formats, their namespaces, dates and habits, and reads broken feeds as well; but it keeps no byte
positions, of a repeated unknown element only the last, and mixes in what stands around an entry: a `base` attribute of
one entry makes it resolve the names and links of those behind it differently. What an entry is are its own elements,
and nothing around it: so its key and its digest are the exact parser's (`feeds`), which sees every element of it.

Both must see the same entries. When they do not, nothing is cut: the document is passed on whole, and is
new when its bytes are. When only feedparser can read a feed, it tells which entries are new, and nothing is cut.

This runs in the parser processes (`worker`), not in the hub.
"""

import hashlib
import io
import json
import re
from dataclasses import dataclass, replace
from typing import Any

import feedparser

from push_hub.intake.feeds import (
    MAX_ENTRIES,
    MAX_TEXT,
    Feed,
    FeedEntry,
    NotAFeedError,
    PollHints,
    entry_key,
    read_feed,
    told_apart,
)

_DAY = 86_400.0
_PERIODS = {"hourly": _DAY / 24, "daily": _DAY, "weekly": 7 * _DAY, "monthly": 30 * _DAY, "yearly": 365 * _DAY}
_WORD = re.compile(r"[^0-9A-Za-z]+")


class DisagreementError(Exception):
    """The two parsers do not see the same entries; the text says where they part."""


@dataclass(frozen=True, slots=True)
class _Read:
    """An entry as feedparser read it; no key when it has neither id nor link nor title."""

    key: bytes | None
    digest: bytes
    name: str


@dataclass(frozen=True, slots=True)
class _Opinion:
    """What feedparser found."""

    entries: list[_Read]
    frame: bytes
    ttl: float | None


def take_apart(body: bytes, content_type: str) -> Feed | None:
    """The feed, or None when it is none. Raises `UnsafeXmlError` or `DisagreementError`."""
    try:
        exact = read_feed(body, content_type)
    except NotAFeedError as error:
        if not error.malformed:
            return None
        opinion = _ask_feedparser(body, content_type)
        if not opinion.entries:
            return None
        entries = told_apart(
            [FeedEntry(read.key or _content_key(read.digest), read.digest) for read in opinion.entries]
        )
        return Feed(entries, opinion.frame, cuttable=False, hints=PollHints(ttl=opinion.ttl))
    opinion = _ask_feedparser(body, content_type)
    _must_agree(exact, opinion)
    ttl = max((wait for wait in (exact.hints.ttl, opinion.ttl) if wait is not None), default=None)
    return replace(exact, hints=replace(exact.hints, ttl=ttl))


def _must_agree(exact: Feed, opinion: _Opinion) -> None:
    if len(exact.entries) != len(opinion.entries):
        raise DisagreementError(f"{len(exact.entries)} entries in the bytes, {len(opinion.entries)} for feedparser")
    for place, (known, read) in enumerate(zip(exact.entries, opinion.entries, strict=True), 1):
        if not _same_name(known.id, read.name):
            raise DisagreementError(
                f"entry {place} is {known.id[:80]!r} in the bytes, {read.name[:80]!r} for feedparser"
            )


def _same_name(exact: str, read: str) -> bool:
    """feedparser resolves relative names and mends encodings, so only letters and digits of ASCII are compared."""
    exact, read = _WORD.sub("", exact), _WORD.sub("", read[: 2 * MAX_TEXT])
    return read.endswith(exact) or (len(exact) >= MAX_TEXT // 2 and exact in read)


def _ask_feedparser(body: bytes, content_type: str) -> _Opinion:
    # From a stream: of bytes feedparser would first see whether they are the name of a file. Cleaning HTML costs two
    # thirds of the time and hides changes.
    parsed = feedparser.parse(
        io.BytesIO(body),
        response_headers={"content-type": content_type},
        sanitize_html=False,
        resolve_relative_uris=False,
    )
    if len(parsed.entries) > MAX_ENTRIES:
        raise DisagreementError(f"more than {MAX_ENTRIES} entries for feedparser")
    return _Opinion([_entry(entry) for entry in parsed.entries], _digest(parsed.feed), _update_period(parsed.feed))


def _entry(read: Any) -> _Read:
    digest = _digest(_own(read))
    name = str(read.get("id") or "")
    for kind in ("id", "link", "title"):
        text = read.get(kind)
        if isinstance(text, str) and text:
            return _Read(entry_key(kind, text[:MAX_TEXT]), digest, name)
    return _Read(None, digest, name)


def _content_key(digest: bytes) -> bytes:
    return entry_key("content", digest.hex())


def _own(read: Any) -> Any:
    """Without `base`, which feedparser derives from the neighbours as well."""
    if isinstance(read, dict):
        return {key: _own(value) for key, value in read.items() if key != "base"}
    return [_own(value) for value in read] if isinstance(read, list) else read


def _digest(value: Any) -> bytes:
    """Of everything feedparser read."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode("utf-8", "surrogatepass")).digest()


def _update_period(feed: Any) -> float | None:
    """The hint of RSS's syndication module: so many updates a period."""
    period = _PERIODS.get(str(feed.get("sy_updateperiod", "")).strip().lower())
    if period is None:
        return None
    times = str(feed.get("sy_updatefrequency", "1")).strip()
    return period / max(1, int(times)) if times.isascii() and times.isdigit() and len(times) < 6 else period
