"""How a feed travels from a parser process to the hub: fixed rows, so that unpacking costs little."""

import struct

from push_hub.intake.feeds import MAX_ENTRIES, Feed, FeedEntry, PollHints

_HEAD = struct.Struct("!32s?dIBI")
_ENTRY = struct.Struct("!32s32sqqqq")
MAX_PACKED = _HEAD.size + MAX_ENTRIES * _ENTRY.size


def packed(feed: Feed) -> bytes:
    hints = feed.hints
    head = _HEAD.pack(
        feed.frame,
        feed.cuttable,
        -1.0 if hints.ttl is None else hints.ttl,
        sum(1 << hour for hour in hints.skip_hours),
        sum(1 << day for day in hints.skip_days),
        len(feed.entries),
    )
    return head + b"".join(
        _ENTRY.pack(one.key, one.digest, one.start, one.end, one.listed_from, one.listed_to) for one in feed.entries
    )


def unpacked(data: bytes) -> Feed:
    """Raises `ValueError` when this is not what `packed` makes."""
    try:
        frame, cuttable, ttl, hours, days, count = _HEAD.unpack_from(data)
        entries = [
            FeedEntry(key, digest, start, end, "", listed_from, listed_to)
            for key, digest, start, end, listed_from, listed_to in _ENTRY.iter_unpack(data[_HEAD.size :])
        ]
    except struct.error as error:
        raise ValueError(f"no packed feed: {error}") from None
    if len(entries) != count:
        raise ValueError(f"{count} entries announced, {len(entries)} there")
    hints = PollHints(
        None if ttl < 0 else ttl,
        frozenset(hour for hour in range(24) if hours >> hour & 1),
        frozenset(day for day in range(7) if days >> day & 1),
    )
    return Feed(entries, frame, cuttable, hints)
