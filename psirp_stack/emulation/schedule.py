"""What happens in an experiment, and when: links go and come, nodes end and return, applications publish and read.

[[events]]
at = 5.0                              # seconds after the network is up
cut = ["n1", "n2"]                    # or mend, impair (with delay, loss, ... of a link), kill, revive
silently = true                       # the carrier does not notice; a simulated network only

[[workloads]]
publisher = "n0"
subscribers = ["n3", "n5"]            # left out: every other node
item = "http://example.com/feed"      # or sid/rid; left out: one of its own
bytes = 1000
rate = 10.0                           # publications a second
start = 1.0
stop = 20.0                           # left out: when the experiment ends
get = true                            # the subscribers ask for the current version now and then, as often
"""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from identifiers import Identifier, IdentifierSyntaxError, ItemId, Naming, Topic, TopicError
from psirp_stack.links.impairment import Impairment
from psirp_stack.node.config import Fraction, Seconds

MAX_SECONDS = 86_400.0
MAX_EVENTS = 100_000
MAX_WORKLOADS = 1000
MAX_RATE = 100_000.0
MAX_BYTES = 16 * 1024 * 1024 - 64
DEFAULT_BYTES = 1000
OWN_SCOPE = Identifier(b"\x65" * 32)
"""Where workloads publish that name no item."""

Moment = Annotated[float, Meta(ge=0.0, le=MAX_SECONDS)]
Ends = tuple[str, str]


class QualityFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How bad a link is."""

    delay: Seconds = 0.0
    jitter: Seconds = 0.0
    loss: Fraction = 0.0
    duplication: Fraction = 0.0
    reorder: Fraction = 0.0
    bandwidth: Annotated[float, Meta(ge=0.0)] = 0.0
    """Bits a second; 0 for no limit."""
    queue: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    """Frames that may wait in front of the link."""

    def impairment(self) -> Impairment:
        return Impairment(
            self.delay, self.jitter, self.loss, self.duplication, self.reorder, self.bandwidth, self.queue
        )


class EventFile(QualityFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    at: Moment
    cut: Ends | None = None
    mend: Ends | None = None
    impair: Ends | None = None
    kill: str | None = None
    revive: str | None = None
    silently: bool = False


class WorkloadFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    publisher: str
    subscribers: tuple[str, ...] = ()
    item: str | None = None
    bytes: Annotated[int, Meta(ge=1, le=MAX_BYTES)] = DEFAULT_BYTES
    rate: Annotated[float, Meta(gt=0.0, le=MAX_RATE)] = 1.0
    start: Moment = 0.0
    stop: Moment | None = None
    get: bool = False


@dataclass(frozen=True, slots=True)
class TimedEvent:
    """One thing that happens. Exactly one of the five is given."""

    at: float
    cut: Ends | None = None
    mend: Ends | None = None
    impair: Ends | None = None
    kill: str | None = None
    revive: str | None = None
    quality: Impairment = Impairment()  # noqa: RUF009  (it never changes)
    silently: bool = False

    @property
    def text(self) -> str:
        for verb in ("cut", "mend", "impair", "kill", "revive"):
            what = getattr(self, verb)
            if what is not None:
                return f"{verb} {what if isinstance(what, str) else ' - '.join(what)}"
        return "nothing"


@dataclass(frozen=True, slots=True)
class TimedWorkload:
    """An application that publishes, and those that read."""

    number: int
    publisher: str
    subscribers: tuple[str, ...]
    item: ItemId
    size: int
    rate: float
    start: float
    stop: float
    get: bool

    def moment(self, number: int) -> float | None:
        """When the publication with this number, from 0, is due; None after the last."""
        due = self.start + number / self.rate
        return due if due < self.stop - 1e-9 else None


class ScheduleError(ValueError):
    """An event or a workload that cannot be; the message says which."""


def event_of(file: EventFile, number: int, name_of: "Names", links: "frozenset[frozenset[str]]") -> TimedEvent:
    where = f"events, entry {number}"
    given = [verb for verb in ("cut", "mend", "impair", "kill", "revive") if getattr(file, verb) is not None]
    if len(given) != 1:
        raise ScheduleError(f"{where}: expected one of cut, mend, impair, kill and revive, not {' and '.join(given)}")
    if file.silently and given[0] not in ("cut", "kill"):
        raise ScheduleError(f"{where}: only cut and kill can go silently")

    def ends(pair: Ends | None) -> Ends | None:
        if pair is None:
            return None
        named = name_of(pair[0], where), name_of(pair[1], where)
        if frozenset(named) not in links:
            raise ScheduleError(f"{where}: no link joins {pair[0]!r} and {pair[1]!r}")
        return named

    try:
        quality = file.impairment()
    except ValueError as error:
        raise ScheduleError(f"{where}: {error}") from None
    return TimedEvent(
        file.at,
        ends(file.cut),
        ends(file.mend),
        ends(file.impair),
        None if file.kill is None else name_of(file.kill, where),
        None if file.revive is None else name_of(file.revive, where),
        quality,
        file.silently,
    )


def workload_of(
    file: WorkloadFile, number: int, name_of: "Names", everybody: tuple[str, ...], end: float
) -> TimedWorkload:
    where = f"workloads, entry {number}"
    publisher = name_of(file.publisher, where)
    subscribers = tuple(dict.fromkeys(name_of(name, where) for name in file.subscribers))
    stop = end if file.stop is None else min(file.stop, end)
    if stop < file.start:
        raise ScheduleError(f"{where}: stops at {stop:g} s, before it starts at {file.start:g} s")
    return TimedWorkload(
        number,
        publisher,
        subscribers or tuple(name for name in everybody if name != publisher),
        _item(file.item, number, where),
        file.bytes,
        file.rate,
        file.start,
        stop,
        file.get,
    )


def _item(text: str | None, number: int, where: str) -> ItemId:
    if text is None:
        return ItemId(OWN_SCOPE, Identifier(number.to_bytes(32, "big")))
    try:
        return ItemId.parse(text)
    except IdentifierSyntaxError:
        pass
    try:
        return Naming().of_topic(Topic.parse(text))
    except TopicError as error:
        raise ScheduleError(f"{where}: item {text!r}: {error}") from None


class Names:
    """The node that a name in a file stands for."""

    def __init__(self, named: dict[str, str], nodes: tuple[str, ...]) -> None:
        self._named = named
        self._nodes = frozenset(nodes)

    def __call__(self, name: str, where: str) -> str:
        node = self._named.get(name, name)
        if node not in self._nodes:
            raise ScheduleError(f"{where}: no node is named {name!r}")
        return node
