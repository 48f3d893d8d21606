"""When to look again: retries of failed fetches, and polling of topics whose publishers do not ping. No I/O.

The polling interval follows what was seen: it shrinks by half when the topic had changed and grows by half when
it had not, between the configured bounds, which moves it towards the rate of change. What the publisher says
(`Retry-After`, `max-age`, RSS ttl) is a lower bound of one wait, and skipped hours and days move it on.
"""

import math
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from push_hub.intake.feeds import PollHints

SHRINK = 0.5
GROW = 1.5
HOUR = 3600.0
MAX_HINT = 30 * 86_400.0
"""A publisher cannot put us off for longer."""
_MAX_AGE = re.compile(r"(?:^|,)\s*max-age\s*=\s*\"?([0-9]{1,10})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look at a topic gave."""

    changed: bool
    hints: PollHints = field(default_factory=PollHints)
    max_age: float | None = None
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class PollPlan:
    every: float
    at: float


def plan_poll(every: float | None, seen: Seen, now: float, shortest: float, longest: float) -> PollPlan:
    """The next interval, and the time of the next look: never before `now + shortest`."""
    if every is None or not math.isfinite(every):
        every = shortest * 4
    every = min(max(every * (SHRINK if seen.changed else GROW), shortest), longest)
    wait = every
    for hint in (seen.hints.ttl, seen.max_age, seen.retry_after):
        if hint is not None and math.isfinite(hint):
            wait = max(wait, min(hint, MAX_HINT))
    return PollPlan(every, _out_of_skipped_hours(now + wait, seen.hints))


def _out_of_skipped_hours(at: float, hints: PollHints) -> float:
    if len(hints.skip_hours) >= 24 or len(hints.skip_days) >= 7:
        return at  # a publisher that never wants to be read does not mean it
    for _ in range(24 * 8):
        moment = datetime.fromtimestamp(at, UTC)
        if moment.hour not in hints.skip_hours and moment.weekday() not in hints.skip_days:
            return at
        at = (at // HOUR + 1) * HOUR
    return at


def max_age(cache_control: str | None) -> float | None:
    match = _MAX_AGE.search(cache_control[:1000]) if cache_control else None
    return min(float(match[1]), MAX_HINT) if match else None


def retry_after(value: str | None, now: float) -> float | None:
    """Seconds from now, from either form of the header."""
    if value is None:
        return None
    value = value.strip()[:60]
    if value.isascii() and value.isdigit():
        return min(float(value[:10]), MAX_HINT)
    try:
        moment = parsedate_to_datetime(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return min(max(moment.timestamp() - now, 0.0), MAX_HINT)
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
