"""The trace record: what it says, in which order steps come, and what older files lack.

One record is one step of one publication at one node, or a stay in a queue, or that somebody came or went. Live
gateways, benchmarks and simulations write the same records, so that one pipeline reads them all. `docs/traces.md`
explains every field.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

SCHEMA_VERSION: Final = 3
OLDEST_VERSION: Final = 1


class Domain(StrEnum):
    PUSH = "push"
    PSIRP = "psirp"


class StepOutcome(StrEnum):
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


class TraceStep(StrEnum):
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
    SERVED = "served"
    """A stay in a queue is over: `resource`, `queued_ns`, `started_ns`, `queue`."""
    CONTROL_SENT = "control_sent"
    """A control message of the network left for another node: `publication` names it."""
    CONTROL_ARRIVED = "control_arrived"
    """It is at that node. Such pairs, in both directions, are what clocks are compared by."""
    UP = "up"
    """A link, session or subscriber is connected; `resource` says which."""
    DOWN = "down"


RESOURCE_STEPS: Final = (TraceStep.SERVED, TraceStep.UP, TraceStep.DOWN)
"""Of a resource, not of a publication's way: no part of any stage."""
CONTROL_STEPS: Final = (TraceStep.CONTROL_SENT, TraceStep.CONTROL_ARRIVED)
"""Of a message between nodes: no publication, and no latency that a report tells."""
CONTROL_STAGE: Final = "control"


class TraceRecord(NamedTuple):
    """One step. A tuple, because hundreds of thousands a second may be made."""

    run: str
    publication: str
    """The same at every node the publication visits, unique within the run; empty when a record is about none."""
    step: TraceStep
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
    outcome: StepOutcome
    schema: int = SCHEMA_VERSION
    resource: str | None = None
    """What was stayed in (also a `delivered` record may say so), or what came or went: `kind` or `kind/which`."""
    queued_ns: int | None = None
    """When it came to the resource, by the clock of `monotonic_ns`, which is when it was done."""
    started_ns: int | None = None
    queue: int | None = None
    """How many were there when it came, with those in service."""
    peer: str | None = None
    """Where a frame was sent to: its next hop is the record of that node."""


class ColumnType(StrEnum):
    """Types a column may have."""

    TEXT = "text"
    INTEGER = "integer"
    REAL = "real"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: ColumnType
    required: bool
    since: int = OLDEST_VERSION


COLUMNS: Final = (
    Column("run", ColumnType.TEXT, required=True),
    Column("publication", ColumnType.TEXT, required=True),
    Column("step", ColumnType.TEXT, required=True),
    Column("domain", ColumnType.TEXT, required=True),
    Column("node", ColumnType.TEXT, required=True),
    Column("topic", ColumnType.TEXT, required=False),
    Column("sid", ColumnType.TEXT, required=False),
    Column("rid", ColumnType.TEXT, required=False),
    Column("payload", ColumnType.INTEGER, required=False),
    Column("hop", ColumnType.INTEGER, required=False),
    Column("delivery", ColumnType.TEXT, required=False, since=2),
    Column("attempt", ColumnType.INTEGER, required=False, since=2),
    Column("load", ColumnType.REAL, required=False, since=2),
    Column("monotonic_ns", ColumnType.INTEGER, required=True),
    Column("wall_ns", ColumnType.INTEGER, required=True),
    Column("clock", ColumnType.TEXT, required=True),
    Column("outcome", ColumnType.TEXT, required=True),
    Column("schema", ColumnType.INTEGER, required=True),
    Column("resource", ColumnType.TEXT, required=False, since=3),
    Column("queued_ns", ColumnType.INTEGER, required=False, since=3),
    Column("started_ns", ColumnType.INTEGER, required=False, since=3),
    Column("queue", ColumnType.INTEGER, required=False, since=3),
    Column("peer", ColumnType.TEXT, required=False, since=3),
)
COLUMN_NAMES: Final = tuple(column.name for column in COLUMNS)


def unseen(version: int) -> str:
    """What records of an older version cannot tell; empty for the present one."""
    missing = [column.name for column in COLUMNS if column.since > version]
    if not missing:
        return ""
    queues = "; nothing is known of queues, connectivity and pairs of hops" if version < 3 else ""
    if version < 2:
        queues += "; whose delivery it was is not known, so none can be called repeated"
    return f"without {', '.join(missing)}{queues}"


@dataclass(frozen=True, slots=True)
class LatencyStage:
    """A latency: from one step of a publication to a later one.

    `same_node` asks for both ends at one node. Where several starts are named, the first that exists counts.
    """

    name: str
    starts: tuple[TraceStep, ...]
    end: TraceStep
    same_node: bool


STAGES: Final = (
    LatencyStage("ping", (TraceStep.PINGED,), TraceStep.PINGED, same_node=False),
    LatencyStage("fetch", (TraceStep.PINGED,), TraceStep.FETCHED, same_node=True),
    LatencyStage("store", (TraceStep.FETCHED, TraceStep.PINGED), TraceStep.ACCEPTED, same_node=True),
    LatencyStage("hand_over", (TraceStep.ACCEPTED,), TraceStep.PUBLISHED, same_node=True),
    LatencyStage("hop", (TraceStep.PUBLISHED,), TraceStep.FORWARDED, same_node=False),
    LatencyStage("carry", (TraceStep.PUBLISHED,), TraceStep.RECEIVED, same_node=False),
    LatencyStage("relay", (TraceStep.RECEIVED,), TraceStep.RELAYED, same_node=True),
    LatencyStage("fan_out", (TraceStep.RELAYED, TraceStep.ACCEPTED), TraceStep.DELIVERED, same_node=True),
    LatencyStage("process_d", (TraceStep.SUBSCRIBE_ISSUED,), TraceStep.RECEIVED, same_node=False),
    LatencyStage("total_push_d", (TraceStep.SUBSCRIBE_ARRIVED,), TraceStep.DELIVERED, same_node=False),
    LatencyStage(CONTROL_STAGE, (TraceStep.CONTROL_SENT,), TraceStep.CONTROL_ARRIVED, same_node=False),
    LatencyStage("end_to_end", (TraceStep.PINGED, TraceStep.ACCEPTED), TraceStep.DELIVERED, same_node=False),
)
"""Per stage and end to end. `process_d` and `total_push_d` are the two delays the original prototype measured."""

assert TraceRecord._fields == COLUMN_NAMES  # noqa: S101 - the table above describes that tuple
