"""What was looked up, kept for as long as it may be believed. Sans-I/O: the time comes in."""

from dataclasses import dataclass, replace

from gateway.discovery.model import DiscoveryError, Found, LookupFailedError, check_seconds


@dataclass(frozen=True, slots=True)
class CacheConfig:
    shortest: float = 5.0
    """Seconds that any answer is kept, however short its time to live: with 0, every packet might cost a question."""
    longest: float = 3600.0
    longest_negative: float = 300.0
    failure: float = 5.0
    """Seconds during which a failed look-up is not tried again."""
    stale: float = 3600.0
    """Seconds beyond its time during which an answer is still used while the name servers do not answer (RFC 8767)."""
    domains: int = 1024

    def __post_init__(self) -> None:
        for name in ("shortest", "longest", "longest_negative", "failure", "stale"):
            check_seconds(f"cache {name}", getattr(self, name), zero=True)
        if self.shortest > min(self.longest, self.longest_negative):
            raise DiscoveryError("the shortest time to keep an answer is above the longest")
        if self.domains < 1:
            raise DiscoveryError("the cache needs room for one domain")


@dataclass(slots=True)
class CacheCounts:
    hits: int = 0
    misses: int = 0
    stale_used: int = 0
    forgotten_for_room: int = 0


@dataclass(frozen=True, slots=True)
class _Entry:
    found: Found | None
    believed_until: float
    problem: str | None = None
    problem_until: float = 0.0


class AnswerCache:
    def __init__(self, config: CacheConfig) -> None:
        self.counts = CacheCounts()
        self._config = config
        self._entries: dict[str, _Entry] = {}

    def get(self, domain: str, now: float) -> Found | None:
        """What is known; None: it has to be asked. Raises LookupFailedError when that failed a moment ago."""
        entry = self._entries.get(domain)
        if entry is not None and entry.found is not None and now < entry.believed_until:
            self.counts.hits += 1
            return replace(entry.found, ttl=entry.believed_until - now)
        if entry is not None and entry.problem is not None and now < entry.problem_until:
            self.counts.hits += 1
            return self._stale(entry, entry.problem, now)
        self.counts.misses += 1
        return None

    def put(self, found: Found, now: float, *, hasty: bool = False) -> Found:
        """Keep an answer; it comes back with the time it will be kept. `hasty`: a part is missing, ask again soon."""
        config = self._config
        longest = config.longest if found.gateways else config.longest_negative
        ttl = min(max(found.ttl, config.shortest), longest)
        if hasty:
            ttl = min(ttl, config.failure)
        self._store(found.domain, _Entry(found, now + ttl))
        return replace(found, ttl=ttl)

    def put_failure(self, domain: str, problem: str, now: float) -> Found:
        """Remember that nobody answered; what was known before comes back if it is not too old, else the error."""
        known = self._entries.get(domain)
        found, until = (None, now) if known is None else (known.found, known.believed_until)
        entry = _Entry(found, until, problem, now + self._config.failure)
        self._store(domain, entry)
        return self._stale(entry, problem, now)

    def _stale(self, entry: _Entry, problem: str, now: float) -> Found:
        if entry.found is None or not entry.found.gateways or now >= entry.believed_until + self._config.stale:
            raise LookupFailedError(problem)
        self.counts.stale_used += 1
        return replace(entry.found, ttl=max(entry.problem_until - now, 0.0), stale=True)

    def _store(self, domain: str, entry: _Entry) -> None:
        self._entries.pop(domain, None)
        self._entries[domain] = entry
        if len(self._entries) > self._config.domains:
            del self._entries[next(iter(self._entries))]
            self.counts.forgotten_for_room += 1
