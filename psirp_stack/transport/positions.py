"""The versions of an item laid end to end: where each begins, which may be sent, and how they are cut for the wire."""

from concurrent.futures import Future

from psirp_stack.transport.hooks import WallClock
from psirp_stack.transport.messages import INLINE_ATTRIBUTES_BYTES, segment_count
from psirp_stack.transport.versions import Version, Versions

DEFAULT_SEGMENT_BYTES = 1024


class Outgoing:
    """A version, cut for the wire."""

    __slots__ = ("body", "inline", "segment_size", "segments", "start", "version", "version_id")

    def __init__(self, version: Version, start: int, segment_size: int) -> None:
        self.version = version
        self.version_id = version.version_id
        self.start = start
        self.inline = len(version.attributes) <= INLINE_ATTRIBUTES_BYTES
        """Whether the attributes travel in the announcement."""
        self.body = version.content if self.inline else version.attributes + version.content
        self.segment_size = segment_size
        self.segments = segment_count(len(self.body), segment_size)


class Positions:
    """Positions are bytes from the beginning of the first version that this life of the node knows of."""

    def __init__(self, versions: Versions, most_cut: int, wall_ms: WallClock) -> None:
        """`most_cut`: how many versions are kept ready for the wire."""
        self.versions = versions
        self.newest = 0
        """The newest version that may be sent: it is stored for good."""
        self.last = versions.next_number - 1
        """The newest version, stored for good or not."""
        self.segment_size = DEFAULT_SEGMENT_BYTES
        self._most_cut = most_cut
        self._wall_ms = wall_ms
        self._published: dict[int, float] = {}
        """When the versions of this life were published: a clock that is set does not change their age."""
        self._starts: dict[int, int] = {}
        self._end = 0
        for number, cost in versions.costs():
            self._starts[number] = self._end
            self._end += cost
        self._outgoing: dict[int, Outgoing] = {}
        self._stored: dict[int, Future[None]] = {}
        self.sync()

    @property
    def oldest(self) -> int:
        return self.versions.oldest

    @property
    def end(self) -> int:
        return self._end

    def start_of(self, number: int) -> int:
        """The position at which a version begins; those no longer retained count as beginning with the oldest."""
        if number > self.last:
            return self._end
        start = self._starts.get(number)
        return self._starts.get(self.versions.oldest, self._end) if start is None else start

    def add(self, version: Version, now: float) -> "Future[None] | None":
        stored = self.versions.add(version)
        self._published[version.number] = now
        if stored is not None:
            self._stored[version.number] = stored
        self.last = version.number
        self._starts[version.number] = self._end
        self._end += version.cost
        self.sync()
        return stored

    def reached(self, acked: int, progress: int) -> int:
        """The position up to which a receiver has everything."""
        return self.start_of(acked + 1) + progress

    def stored(self, number: int) -> "Future[None] | None":
        """The promise that a version gets on disk; None when it is there."""
        return self._stored.get(number)

    def sync(self) -> None:
        """Take in which versions are stored for good, and that some could not be."""
        self.newest = self.versions.newest
        kept = self.versions.next_number - 1
        while self.last > kept:
            self._end = self._starts.pop(self.last)
            self._outgoing.pop(self.last, None)
            self._stored.pop(self.last, None)
            self._published.pop(self.last, None)
            self.last -= 1
        if self._stored:
            for number in [number for number in self._stored if number <= self.newest]:
                del self._stored[number]

    def trim(self, now_ms: int, keep_from: int) -> None:
        """Let go of what retention does not ask for, but of nothing from `keep_from` on."""
        before = self.versions.oldest
        self.versions.trim(now_ms, min(keep_from, self.newest))
        for number in range(before, self.versions.oldest):
            self._starts.pop(number, None)
            self._outgoing.pop(number, None)
            self._published.pop(number, None)
        # What everybody has confirmed is not sent again soon: whoever comes late has it read from the store.
        while self._outgoing and (first := next(iter(self._outgoing))) < keep_from:
            del self._outgoing[first]

    def age_of(self, number: int, now: float) -> float:
        """Seconds since a version was published. One that is not retained any more is as old as the oldest that is."""
        number = max(number, self.oldest)
        published = self._published.get(number)
        if published is not None:
            return now - published
        published_ms = self.versions.published_ms(number)
        return 0.0 if published_ms is None else max(0.0, (self._wall_ms(now) - published_ms) / 1000)

    def first_within(self, seconds: float, now: float) -> int:
        """The oldest retained version that was published in the last so many seconds; one above the newest if none."""
        number = self.newest + 1
        while number > self.oldest and self.age_of(number - 1, now) <= seconds:
            number -= 1
        return number

    def outgoing(self, number: int) -> Outgoing | None:
        """A version as it is sent; None when it is not retained."""
        out = self._outgoing.get(number)
        if out is None:
            version = self.versions.get(number)
            if version is None:
                return None
            out = Outgoing(version, self.start_of(number), self.segment_size)
            if len(self._outgoing) >= self._most_cut:
                # Catching up goes through versions that are not in flight: those made first are done first.
                del self._outgoing[next(iter(self._outgoing))]
            self._outgoing[number] = out
        return out

    def cut_anew(self, segment_size: int) -> None:
        self.segment_size = segment_size
        self._outgoing.clear()
