"""Everything about versions that are asked for once, for one node: its own requests, its answers, what passes by.

service.start(item, first, last, handed_up, over, now)    ask for versions
service.look(frames)                                      frames that came by a link; those that go on come back
service.receive(function, payload, now)                   a PULL or PULLED message for this node
while (out := service.next_message()): ...                a message for a node; and `next_frame()`, a frame as it is
service.next_timer(), service.handle_timer(now)
"""

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from identifiers.identifier import Identifier, ItemId
from psirp_stack.control.codes import Code, Function
from psirp_stack.control.frames import CONTROL_OVERHEAD
from psirp_stack.control.messages import Explanation, ItemList, Reply, ScopePolicy
from psirp_stack.pull.access import KnownPolicies, is_for_everybody
from psirp_stack.pull.cache import VersionCache, VersionKey, strategy_named
from psirp_stack.pull.holder import OwnVersions, VersionHolder, resolved
from psirp_stack.pull.messages import (
    MIN_PIECE_BYTES,
    FetchPieces,
    PullMessageError,
    SeekVersions,
    VersionOffer,
    VersionPiece,
    decode,
    encode,
)
from psirp_stack.pull.on_path import OnPath, RouteFor
from psirp_stack.pull.task import PulledVersion, PullHooks, PullSource, PullTask
from psirp_stack.transport.versions import Version

MAX_TASKS = 1024
MAX_OUT = 8192
"""Messages that wait to be sent."""
PIECE_OVERHEAD = CONTROL_OVERHEAD + 256
MAX_PIECE_BYTES = 8192
MAX_SOURCES = 8
"""Nodes that are asked for one item."""


class PullDrop(StrEnum):
    """Why a message about versions had no effect."""

    MALFORMED = "malformed"
    NOT_ASKED = "nobody asked for it"
    NO_ROOM = "too many answers wait"
    NO_WAY = "no path leads to who asked"


@dataclass(frozen=True, slots=True)
class VersionCacheConfig:
    """A node's memory for versions of others."""

    bytes: int = 0
    """0: no memory to spare; versions are asked for and given, none are kept."""
    strategy: str = "everywhere"


Known = Explanation | ItemList | Reply
Locate = Callable[[ItemId, Callable[[Known], None]], None]
"""Asks the rendezvous about an item."""
Refusal = Callable[[ItemId, str, Version, ScopePolicy], str | None]
"""Why a publisher's version does not count under its scope's policy; None when it does."""


class PullService:
    """One node's. `hops_to` says how far other nodes are."""

    def __init__(
        self,
        name: str,
        config: VersionCacheConfig,
        own: OwnVersions,
        *,
        locate: Locate,
        refusal: Refusal,
        route_for: RouteFor,
        mtu_to: Callable[[str], int | None],
        hops_to: Callable[[str], int | None],
        rng: random.Random,
    ) -> None:
        self.cache = VersionCache(config.bytes, strategy_named(config.strategy), rng)
        self.drops: Counter[PullDrop] = Counter()
        self.answered = 0
        """Requests that were for this node."""
        self.fetches = 0
        """Those of them that were answered with content."""
        self._name = name
        self._now = 0.0
        self._locate = locate
        self._refusal = refusal
        self._mtu_to = mtu_to
        self._hops_to = hops_to
        self._own = own
        self._policies = KnownPolicies()
        self._holder = VersionHolder(name, self.cache, own, self._access)
        self._messages: deque[tuple[str, Function, bytes]] = deque()
        self._frames: deque[bytes] = deque()
        self._on_path = OnPath(name, self.cache, self._holder, route_for, self._answer, self._send)
        self._tasks: dict[int, PullTask] = {}
        self._numbers = rng.getrandbits(48)

    @property
    def keeps(self) -> bool:
        """Whether this node has memory to spare."""
        return self.cache.most_bytes > 0

    @property
    def held_bytes(self) -> int:
        return self.cache.used + self._on_path.passing.held

    @property
    def tasks(self) -> int:
        return len(self._tasks)

    # What the node's applications ask for.

    def start(
        self,
        item: ItemId,
        first: int,
        last: int,
        handed_up: Callable[[PulledVersion], None],
        over: Callable[[Code, str], None],
        now: float,
        *,
        if_unpublished: bool = False,
    ) -> None:
        """Ask for a range of an item's versions, once: 1 is a publisher's first, -1 its newest.

        `if_unpublished`: leave it to the publishers, if there are any.
        """
        self._now = now
        if (own := self._own(bytes(item))) is not None and own.newest >= own.oldest:
            numbers = range(
                max(resolved(first, own.newest), own.oldest), min(resolved(last, own.newest), own.newest) + 1
            )
            versions = (own.get(number) for number in numbers)
            here = [version for version in versions if version is not None]
            for version in here:
                handed_up(PulledVersion(self._name, version, self._name))
            over(*((Code.SUCCESS, "") if here else (Code.GONE, "none of these versions is retained")))
            return
        if len(self._tasks) >= MAX_TASKS:
            over(Code.LIMIT_REACHED, f"{MAX_TASKS} requests of this node wait for versions")
            return
        self._numbers += 1
        token = self._numbers
        policy: list[ScopePolicy] = []

        def ended(code: Code, reason: str) -> None:
            self._tasks.pop(token, None)
            over(code, reason)

        hooks = PullHooks(
            lambda asked, publisher, version: self._refusal(asked, publisher, version, policy[0]),
            self.cache.get,
            self._piece_size,
            handed_up,
            ended,
        )
        task = self._tasks[token] = PullTask(token, self._name, item, first, last, hooks, now)

        def located(answer: Known) -> None:
            if isinstance(answer, Explanation) and if_unpublished and answer.publishers:
                task.failed(Code.EXISTS, "there are publishers")
            elif isinstance(answer, Explanation) and answer.policy.subscribers is None:
                policy.append(answer.policy)
                if not answer.publishers and (kept := self._holder.kept(bytes(item), first, last)):
                    task.kept_here([PulledVersion(publisher, version, self._name) for publisher, version in kept])
                    return
                task.located(self._sources(answer), self._now)
            elif isinstance(answer, Explanation):
                task.failed(Code.NOT_ALLOWED, "not everybody may have it: subscribe instead")
            elif isinstance(answer, Reply):
                task.failed(Code(answer.code), answer.reason)
            self._gather(task)

        self._locate(item, located)

    def published(self, item: ItemId, version: Version) -> None:
        """This node published a version: kept here, it can be had when the publisher has gone."""
        if not self.keeps:
            return
        for_everybody = self._policies.is_for_everybody(bytes(item), self._now)
        if for_everybody:
            self.cache.add(VersionKey(bytes(item), self._name, version.epoch, version.number), version)
        elif for_everybody is None:
            self._ask_policy(item)

    def policy_heard(self, item: ItemId, for_everybody: bool, now: float) -> None:
        """What the network said of an item that this node publishes."""
        self._now = max(self._now, now)
        self._policies.heard(bytes(item), for_everybody, now)
        own = self._own(bytes(item))
        if for_everybody and own is not None and (newest := own.get(own.newest)) is not None:
            self.published(item, newest)

    # The network.

    def look(self, frames: Sequence[bytes], now: float) -> Sequence[bytes]:
        """Learn from frames that came by a link; those that nobody answered here come back."""
        self._now = now
        return self._on_path.look(frames)

    def receive(self, function: Function, payload: bytes, now: float) -> None:
        self._now = now
        try:
            message = decode(payload)
        except PullMessageError:
            self.drops[PullDrop.MALFORMED] += 1
            return
        match message:
            case SeekVersions() if function is Function.PULL:
                self._answer_seek(message)
            case FetchPieces() if function is Function.PULL:
                self._answer_fetch(message)
            case VersionOffer() | VersionPiece() if function is Function.PULLED:
                task = self._tasks.get(message.token)
                if task is None:
                    self.drops[PullDrop.NOT_ASKED] += 1
                elif isinstance(message, VersionOffer):
                    task.offered(message, now)
                    self._gather(task)
                elif message.sid + message.rid == bytes(task.item):
                    task.piece(message, now)
                    self._gather(task)
            case _:
                self.drops[PullDrop.MALFORMED] += 1

    def next_message(self) -> tuple[str, Function, bytes] | None:
        return self._messages.popleft() if self._messages else None

    def next_frame(self) -> bytes | None:
        return self._frames.popleft() if self._frames else None

    @property
    def has_something_to_say(self) -> bool:
        return bool(self._messages or self._frames)

    def next_timer(self) -> float | None:
        return min((due for task in self._tasks.values() if (due := task.next_timer()) is not None), default=None)

    def handle_timer(self, now: float) -> None:
        self._now = now
        for task in list(self._tasks.values()):
            task.handle_timer(now)
            self._gather(task)

    # Within.

    def _answer_seek(self, seek: SeekVersions) -> None:
        mtu = self._mtu_to(seek.asker)
        if mtu is None:
            self.drops[PullDrop.NO_WAY] += 1
            return
        offer = self._holder.offer(seek, mtu)
        if offer is None:
            self._ask_policy(ItemId(Identifier(seek.sid), Identifier(seek.rid)))
            return  # whoever asks will ask again
        self.answered += 1
        self._answer(seek.asker, encode(offer))

    def _answer_fetch(self, fetch: FetchPieces) -> None:
        item = fetch.sid + fetch.rid
        if self._own(item) is not None and self._access(item) is None:
            self._ask_policy(ItemId(Identifier(fetch.sid), Identifier(fetch.rid)))
            return
        pieces = self._holder.pieces(fetch)
        if pieces is None:
            offer = VersionOffer(
                *(fetch.token, self._name, fetch.sid, fetch.rid, int(Code.GONE)), self._name, fetch.epoch, 0, 0
            )
            self._answer(fetch.asker, encode(offer))
            return
        self.answered += 1
        self.fetches += 1
        for piece in pieces:
            self._answer(fetch.asker, piece)

    def _access(self, item: bytes) -> bool | None:
        return self._policies.is_for_everybody(item, self._now)

    def _ask_policy(self, item: ItemId) -> None:
        if not self._policies.should_ask(bytes(item), self._now):
            return

        def heard(answer: Known) -> None:
            if isinstance(answer, Explanation):
                self.policy_heard(item, is_for_everybody(answer.policy), self._now)

        self._locate(item, heard)

    def _sources(self, known: Explanation) -> list[PullSource]:
        found: list[PullSource] = []
        publishers = set(known.publishers)
        for name in dict.fromkeys((*known.publishers, *known.subscribers, *known.former)):
            hops = self._hops_to(name)
            if hops is not None and name != self._name:
                found.append(PullSource(name, name in publishers, hops))
        found.sort(key=lambda source: (source.hops, source.name))
        nearest = found[:MAX_SOURCES]
        if publishers and not any(source.publishes for source in nearest):
            nearest += [source for source in found if source.publishes][:1]
        return nearest

    def _piece_size(self, holder: str) -> int:
        mtu = self._mtu_to(holder)
        return max(MIN_PIECE_BYTES, min((mtu or 0) - PIECE_OVERHEAD, MAX_PIECE_BYTES))

    def _gather(self, task: PullTask) -> None:
        while (out := task.next_message()) is not None:
            self._put(out[0], Function.PULL, encode(out[1]))

    def _answer(self, to: str, payload: bytes) -> None:
        self._put(to, Function.PULLED, payload)

    def _put(self, to: str, function: Function, payload: bytes) -> None:
        if len(self._messages) >= MAX_OUT:
            self.drops[PullDrop.NO_ROOM] += 1
            return
        self._messages.append((to, function, payload))

    def _send(self, frame: bytes) -> None:
        if len(self._frames) >= MAX_OUT:
            self.drops[PullDrop.NO_ROOM] += 1
            return
        self._frames.append(frame)
