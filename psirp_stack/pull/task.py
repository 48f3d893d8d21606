"""One request of an application: versions of an item, once, from the nearest nodes that have them.

Who has the item is the rendezvous' word. Its publisher is asked first, because it knows what is current; the pieces are
fetched from whoever is nearest, or on the way. Nothing is handed up that is not what its id, and its signature, say.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from identifiers.identifier import ItemId
from psirp_stack.control.codes import Code
from psirp_stack.control.rtt import RoundTrip
from psirp_stack.pull.cache import VersionKey
from psirp_stack.pull.messages import FetchPieces, OfferedVersion, SeekVersions, VersionOffer, VersionPiece
from psirp_stack.pull.passing import version_of
from psirp_stack.pull.pieces import PieceWindow, VersionBody
from psirp_stack.pull.task_state import PullInput, PullState, after
from psirp_stack.transport.messages import Range
from psirp_stack.transport.versions import Version, content_ids

MAX_PULL_BYTES = 64 * 1024 * 1024
"""Of one request."""
MAX_PULL_VERSIONS = 1024
TRIES = 8
"""Times that a holder is asked without an answer."""
FIRST_TIMEOUT = 0.25
LEAST_TIMEOUT = 0.05
LONGEST_TIMEOUT = 1.0
LOCATE_TIMEOUT = 40.0
"""Seconds that the rendezvous has; whoever asks it gives up before."""


class PulledVersion(NamedTuple):
    """A version that was asked for."""

    publisher: str
    version: Version
    holder: str
    """Who offered it."""


class PullSource(NamedTuple):
    """A node that may have what is wanted."""

    name: str
    publishes: bool
    hops: int


@dataclass(frozen=True, slots=True)
class PullHooks:
    """What a request needs of its node."""

    refusal: Callable[[ItemId, str, Version], str | None]
    """Why a publisher's version does not count; None when it does."""
    kept: Callable[[VersionKey], Version | None]
    """A version that is here already."""
    piece_size: Callable[[str], int]
    """The largest piece that gets through from a node."""
    handed_up: Callable[[PulledVersion], None]
    over: Callable[[Code, str], None]


class PullTask:
    """Asks until everything is here or nobody has more. Give it what arrives; `next_message` is what to send."""

    def __init__(
        self, token: int, asker: str, item: ItemId, first: int, last: int, hooks: PullHooks, now: float
    ) -> None:
        self.token = token
        self.item = item
        self.state = PullState.LOCATING
        self.handed_up = 0
        self._asker = asker
        self._first = first
        self._last = last
        self._hooks = hooks
        self._due = now + LOCATE_TIMEOUT
        self._tries = 0
        self._asked_at = now
        self._measuring = False
        """Nothing came yet of what was asked for last."""
        self._round_trip = RoundTrip(FIRST_TIMEOUT, LEAST_TIMEOUT, LONGEST_TIMEOUT)
        self._seek: deque[PullSource] = deque()
        self._fetch: list[str] = []
        """Whom to fetch from, the nearest first; the last of them offered it."""
        self._sequence: tuple[str, int] | None = None
        self._range_end = 0
        self._offered: deque[OfferedVersion] = deque()
        self._offered_by = ""
        self._body: VersionBody | None = None
        self._window = PieceWindow()
        self._bytes = 0
        self._refusals: list[tuple[Code, str]] = []
        self._to_say: deque[tuple[str, SeekVersions | FetchPieces]] = deque()

    # What arrives.

    def located(self, sources: Sequence[PullSource], now: float) -> None:
        """Who may have it. Publishers are asked first, then the others, each time the nearest."""
        if self.state is not PullState.LOCATING:
            return
        if not sources:
            self._end(PullInput.NOBODY, Code.ITEM_DOES_NOT_EXIST, "nobody is known to have it")
            return
        self._seek = deque(sorted(sources, key=lambda source: (not source.publishes, source.hops, source.name)))
        self._fetch = [source.name for source in sorted(sources, key=lambda source: (source.hops, source.name))]
        self._become(PullInput.LOCATED)
        self._say_seek(now)

    def kept_here(self, versions: Sequence[PulledVersion]) -> None:
        """Nobody publishes it, and this node has it."""
        for version in versions:
            if self._hooks.refusal(self.item, version.publisher, version.version) is None:
                self.handed_up += 1
                self._hooks.handed_up(version)
        self._end(PullInput.NOBODY, Code.SUCCESS if self.handed_up else Code.BAD_SIGNATURE, "")

    def failed(self, code: Code, reason: str) -> None:
        """The rendezvous could not be asked."""
        self._end(PullInput.NOBODY, code, reason)

    def offered(self, offer: VersionOffer, now: float) -> None:
        if self.state is PullState.FETCHING and offer.code and self._fetch and offer.holder == self._fetch[0]:
            self._next_fetch(now)
            return
        if self.state is not PullState.SEEKING:
            return
        if self._sequence is not None and not offer.code and offer.first != self._first:
            return  # said again, to a question of before
        self._round_trip.answered(self._asked_at, now, self._tries)
        if offer.code or not offer.versions:
            code = Code(offer.code) if offer.code else Code.GONE
            if self._sequence is not None and not offer.code:
                self._end(PullInput.ALL_HERE, Code.SUCCESS, "")
                return
            self._next_seek(code, f"{offer.holder} has none of the versions", now)
            return
        sequence = offer.publisher, offer.epoch
        if self._sequence not in (None, sequence):
            self._end(PullInput.ALL_HERE, Code.SUCCESS, "")
            return
        if self._sequence is None:
            self._sequence, self._first, self._last = sequence, offer.first, offer.last
        self._range_end = offer.last
        self._offered = deque(offer.versions)
        self._offered_by = offer.holder
        nearer = [name for name in self._fetch if name != offer.holder]
        at = self._hops_to(offer.holder)
        self._fetch = [*nearer[:at], offer.holder]
        self._become(PullInput.OFFERED)
        self._next_version(now)

    def piece(self, piece: VersionPiece, now: float) -> None:
        body = self._body
        if body is None or self._sequence != (piece.publisher, piece.epoch):
            return
        offered = body.offered
        if (offered.number, offered.version_id, body.piece_size) != (piece.number, piece.version_id, piece.piece_size):
            return
        if not body.add(piece.place, piece.content):
            return
        if self._measuring:
            self._measuring = False
            self._round_trip.answered(self._asked_at, now, self._tries)
        self._tries = 1
        self._due = now + self._round_trip.timeout
        if body.is_whole:
            self._whole(offered, body.join(), now)
        elif ranges := body.to_ask():
            self._say_fetch(ranges, now)

    # What to do next.

    def next_message(self) -> tuple[str, SeekVersions | FetchPieces] | None:
        return self._to_say.popleft() if self._to_say else None

    def next_timer(self) -> float | None:
        return None if self.state is PullState.OVER else self._due

    def handle_timer(self, now: float) -> None:
        if now < self._due:
            return
        match self.state:
            case PullState.LOCATING:
                self._end(PullInput.NOBODY, Code.NO_RENDEZVOUS, "the rendezvous does not answer")
            case PullState.SEEKING:
                self._round_trip.timed_out()
                if self._tries < TRIES:
                    self._say_seek(now)
                else:
                    self._next_seek(Code.UNREACHABLE, f"{self._seek[0].name} does not answer", now)
            case PullState.FETCHING if self._body is not None:
                self._round_trip.timed_out()
                if self._tries < TRIES:
                    self._say_fetch(self._body.to_ask_again(), now)
                else:
                    self._next_fetch(now)

    # Within.

    def _become(self, what: PullInput) -> None:
        self.state = after(self.state, what)
        self._tries = 0

    def _hops_to(self, holder: str) -> int:
        """Where the holder stands among those to fetch from."""
        return self._fetch.index(holder) if holder in self._fetch else len(self._fetch)

    def _say_seek(self, now: float) -> None:
        source = self._seek[0]
        self._tries += 1
        self._asked_at, self._due = now, now + self._round_trip.timeout
        sid, rid = bytes(self.item.sid), bytes(self.item.rid)
        seek = SeekVersions(
            self.token, self._asker, source.name, sid, rid, self._first, self._last, fresh=source.publishes
        )
        self._to_say.append((source.name, seek))

    def _next_seek(self, code: Code, reason: str, now: float) -> None:
        self._refusals.append((code, reason))
        self._seek.popleft()
        if not self._seek:
            self._give_up()
            return
        self._become(PullInput.REFUSED)
        self._round_trip = RoundTrip(FIRST_TIMEOUT, LEAST_TIMEOUT, LONGEST_TIMEOUT)
        self._say_seek(now)

    def _give_up(self) -> None:
        if self.handed_up:
            code, reason = self._refusals[-1]
            self._end(PullInput.NOBODY, code, f"{self.handed_up} versions came, then: {reason}")
            return
        for wanted in (Code.NOT_ALLOWED, Code.GONE, Code.BAD_SIGNATURE, Code.ITEM_DOES_NOT_EXIST):
            for code, reason in self._refusals:
                if code is wanted:
                    self._end(PullInput.NOBODY, code, reason)
                    return
        self._end(PullInput.NOBODY, *self._refusals[-1])

    def _next_version(self, now: float) -> None:
        """Begin with the next of what was offered, or ask what follows it."""
        while self._offered:
            offered = self._offered.popleft()
            publisher, epoch = self._sequence or ("", 0)
            self._bytes += offered.body_size
            if self.handed_up == MAX_PULL_VERSIONS or self._bytes > MAX_PULL_BYTES:
                self._end(PullInput.ALL_HERE, Code.SUCCESS, f"more than {MAX_PULL_BYTES} bytes: ask for the rest")
                return
            kept = self._hooks.kept(VersionKey(bytes(self.item), publisher, epoch, offered.number))
            self._first = offered.number + 1
            if kept is not None and kept.version_id == offered.version_id:
                self._hand_up(kept)
            elif offered.body_size == 0:
                self._checked(offered, b"", now)
            else:
                self._body = VersionBody(offered, self._hooks.piece_size(self._offered_by), self._window)
                self._tries = 0
                self._say_fetch(self._body.to_ask(), now)
                return
            if self.state is not PullState.FETCHING:
                return
        self._body = None
        if self._first > self._range_end:
            self._end(PullInput.ALL_HERE, Code.SUCCESS, "")
            return
        self._become(PullInput.MORE_TO_SEEK)
        self._say_seek(now)

    def _say_fetch(self, ranges: tuple[Range, ...], now: float) -> None:
        body = self._body
        if body is None or self._sequence is None:
            return
        self._tries += 1
        self._asked_at, self._due = now, now + self._round_trip.timeout
        self._measuring = True
        holder = self._fetch[0]
        fetch = FetchPieces(
            self.token,
            self._asker,
            holder,
            bytes(self.item.sid),
            bytes(self.item.rid),
            *self._sequence,
            body.offered.number,
            body.offered.version_id,
            body.piece_size,
            ranges,
        )
        self._to_say.append((holder, fetch))

    def _next_fetch(self, now: float) -> None:
        """Whom it is fetched from does not have it, or stays silent."""
        self._fetch.pop(0)
        body = self._body
        if self._fetch and body is not None:
            self._tries = 0
            self._say_fetch(body.to_ask_again(), now)
            return
        self._body = None
        self._first = body.offered.number if body is not None else self._first
        self._fetch = [source.name for source in self._seek]
        self._next_seek(Code.UNREACHABLE, f"{self._offered_by} offered a version and did not send it", now)

    def _whole(self, offered: OfferedVersion, body: bytes, now: float) -> None:
        self._body = None
        self._checked(offered, body, now)
        if self.state is PullState.FETCHING:
            self._next_version(now)

    def _checked(self, offered: OfferedVersion, body: bytes, now: float) -> None:
        publisher, epoch = self._sequence or ("", 0)
        key = VersionKey(bytes(self.item), publisher, epoch, offered.number)
        split = offered.attributes_size
        version = version_of(key, offered, body[:split], body[split:])
        reason = None
        if content_ids(version.content) != (version.version_id, version.sha256):
            reason = "the content is not what its id says"
        reason = reason or self._hooks.refusal(self.item, publisher, version)
        if reason is None:
            self._hand_up(version)
            return
        self._offered.clear()
        self._first = offered.number
        self._next_seek(Code.BAD_SIGNATURE, f"version {offered.number} from {self._offered_by}: {reason}", now)

    def _hand_up(self, version: Version) -> None:
        self.handed_up += 1
        publisher, _ = self._sequence or ("", 0)
        self._hooks.handed_up(PulledVersion(publisher, version, self._offered_by))

    def _end(self, what: PullInput, code: Code, reason: str) -> None:
        if self.state is PullState.OVER:
            return
        self._become(what)
        self._body = None
        self._to_say.clear()
        self._hooks.over(code, reason)
