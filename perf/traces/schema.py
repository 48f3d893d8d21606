"""The trace record: what it says, in which order steps come, and what older files lack.

One record is one step of one publication at one node. Live gateways, benchmarks and simulations write the same
records, so that one pipeline reads them all. `docs/traces.md` explains every field.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

SCHEMA_VERSION: Final = 2
OLDEST_VERSION: Final = 1


class Domain(StrEnum):
    PUSH = "push"
    PSIRP = "psirp"


class Outcome(StrEnum):
    """How a step ended. Only `ok` steps take part in latencies; the others are counted."""

    OK = "ok"
    FAILED = "failed"
    """Given up for good."""
    RETRIED = "retried"
    """Did not work this time; it is tried again."""
    REFUSED = "refused"
    """A bound bit before anything was done."""
    LOST = "lost"
    """Known to be lost, as a simulated link knows it."""


class Step(StrEnum):
    """The steps of a publication, in the order they happen."""

    SUBSCRIBE_ARRIVED = "subscribe_arrived"
    SUBSCRIBE_ISSUED = "subscribe_issued"
    PINGED = "pinged"
    FETCHED = "fetched"
    ACCEPTED = "accepted"
    PUBLISHED = "published"
    FORWARDED = "forwarded"
    RECEIVED = "received"
    RELAYED = "relayed"
    DELIVERED = "delivered"
    FINISHED = "finished"


class TraceRecord(NamedTuple):
    """One step. A tuple, because hundreds of thousands a second may be made."""

    run: str
    publication: str
    """The same at every node the publication visits, unique within the run."""
    step: Step
    domain: Domain
    node: str
    topic: str | None
    sid: str | None
    rid: str | None
    payload: int | None
    """Bytes of the content, without headers."""
    hop: int | None
    """Links travelled in PSIRP so far; 0 where it was published."""
    delivery: str | None
    """Which subscriber of the node: the hub's number for the subscription, never its callback, which is a secret."""
    attempt: int | None
    load: float | None
    """Publications a second that were offered while this one was sent, when somebody set it."""
    monotonic_ns: int
    wall_ns: int
    clock: str
    """Which clock `monotonic_ns` was read from: only times of one clock may be subtracted."""
    outcome: Outcome
    schema: int = SCHEMA_VERSION


class Kind(StrEnum):
    """Types a column may have."""

    TEXT = "text"
    INTEGER = "integer"
    REAL = "real"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: Kind
    required: bool
    since: int = OLDEST_VERSION


COLUMNS: Final = (
    Column("run", Kind.TEXT, required=True),
    Column("publication", Kind.TEXT, required=True),
    Column("step", Kind.TEXT, required=True),
    Column("domain", Kind.TEXT, required=True),
    Column("node", Kind.TEXT, required=True),
    Column("topic", Kind.TEXT, required=False),
    Column("sid", Kind.TEXT, required=False),
    Column("rid", Kind.TEXT, required=False),
    Column("payload", Kind.INTEGER, required=False),
    Column("hop", Kind.INTEGER, required=False),
    Column("delivery", Kind.TEXT, required=False, since=2),
    Column("attempt", Kind.INTEGER, required=False, since=2),
    Column("load", Kind.REAL, required=False, since=2),
    Column("monotonic_ns", Kind.INTEGER, required=True),
    Column("wall_ns", Kind.INTEGER, required=True),
    Column("clock", Kind.TEXT, required=True),
    Column("outcome", Kind.TEXT, required=True),
    Column("schema", Kind.INTEGER, required=True),
)
COLUMN_NAMES: Final = tuple(column.name for column in COLUMNS)


@dataclass(frozen=True, slots=True)
class Stage:
    """A latency: from one step of a publication to a later one.

    `same_node` asks for both ends at one node. Where several starts are named, the first that exists counts.
    """

    name: str
    starts: tuple[Step, ...]
    end: Step
    same_node: bool


STAGES: Final = (
    Stage("fetch", (Step.PINGED,), Step.FETCHED, same_node=True),
    Stage("store", (Step.FETCHED, Step.PINGED), Step.ACCEPTED, same_node=True),
    Stage("hand_over", (Step.ACCEPTED,), Step.PUBLISHED, same_node=True),
    Stage("hop", (Step.PUBLISHED,), Step.FORWARDED, same_node=False),
    Stage("carry", (Step.PUBLISHED,), Step.RECEIVED, same_node=False),
    Stage("relay", (Step.RECEIVED,), Step.RELAYED, same_node=True),
    Stage("fan_out", (Step.RELAYED, Step.ACCEPTED), Step.DELIVERED, same_node=True),
    Stage("process_d", (Step.SUBSCRIBE_ISSUED,), Step.RECEIVED, same_node=False),
    Stage("total_push_d", (Step.SUBSCRIBE_ARRIVED,), Step.DELIVERED, same_node=False),
    Stage("end_to_end", (Step.PINGED, Step.ACCEPTED), Step.DELIVERED, same_node=False),
)
"""Per stage and end to end. `process_d` and `total_push_d` are the two delays the original prototype measured."""

assert TraceRecord._fields == COLUMN_NAMES  # noqa: S101 - the table above describes that tuple
