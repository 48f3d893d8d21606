"""The small tables that come out of an analysis: one frozen row type each, written as Parquet, CSV and HTML alike."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """One stage of one run in one domain, over all rows (`by` is `all`) or one payload class, hop count or load."""

    run: str
    stage: str
    domain: str
    by: str
    value: float
    count: int
    mean_ms: float
    least_ms: float
    p25_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    p999_ms: float
    most_ms: float
    jitter_ms: float | None
    iqr_ms: float
    margin_ms: float | None
    """How far off clocks may make it at most: 0 within one clock, None when only wall clocks say how they relate."""


@dataclass(frozen=True, slots=True)
class VariationRow:
    """How much delays of a stage vary: by themselves, and from each publication of a flow to the next (`ipdv`, signed).

    `pdv` is the 99.9th percentile less the least (RFC 5481). `autocorrelation` is of each delay with the next of its
    flow. Figures that there are too few values for are missing.
    """

    run: str
    stage: str
    domain: str
    by: str
    value: float
    count: int
    deviation_ms: float
    variation: float
    mad_ms: float
    pdv_ms: float | None
    steps: int
    ipdv_p1_ms: float | None
    ipdv_p50_ms: float | None
    ipdv_p99_ms: float | None
    ipdv_abs_mean_ms: float | None
    rfc3550_ms: float | None
    autocorrelation: float | None


@dataclass(frozen=True, slots=True)
class HomogeneityRow:
    """Do local and crossed deliveries of the same publications vary alike? `p` by exchanging the two in whole blocks.

    `effect` of Brown-Forsythe is how many times as far values of the second are from their median, of Kruskal-Wallis
    how likely one of the second is the larger one; with a 95 % interval.
    """

    run: str
    stage: str
    test: str
    statistic: float
    p: float
    effect: float
    effect_low: float
    effect_high: float
    blocks: int


@dataclass(frozen=True, slots=True)
class StabilityRow:
    """Whether delays end to end stay as they are over a run, from the medians of its slices.

    `trend` is the median of all slopes between two slices (Theil-Sen), `trend_p` Mann-Kendall's. `changes` are the
    seconds at which the level changed.
    """

    run: str
    domain: str
    slices: int
    resemblance: float
    trend_ms_per_minute: float
    trend_p: float
    changes: str


@dataclass(frozen=True, slots=True)
class PartRow:
    """What part of the way makes delays vary: its share of the variance, and of how slow the slowest hundredth is."""

    run: str
    domain: str
    part: str
    deliveries: int
    mean_ms: float
    variance_share: float | None
    tail_mean_ms: float | None
    tail_share: float | None


@dataclass(frozen=True, slots=True)
class PlaceRow:
    """Deliveries end to end of one gateway, topic or subscriber; of topics and subscribers, the slowest ones."""

    run: str
    kind: str
    name: str
    domain: str
    count: int
    p50_ms: float
    p99_ms: float | None
    most_ms: float


@dataclass(frozen=True, slots=True)
class SlowRow:
    """One of the slowest deliveries of a run, and what its way was made of."""

    run: str
    publication: str
    topic: str | None
    domain: str
    node: str
    subscriber: str | None
    started_ns: int
    load: float | None
    payload: int | None
    latency_ms: float
    margin_ms: float | None
    fetch_ms: float | None
    store_ms: float | None
    hand_over_ms: float | None
    carry_ms: float | None
    relay_ms: float | None
    fan_out_ms: float | None


@dataclass(frozen=True, slots=True)
class DepthRow:
    """Stays in a queue by how many were found there."""

    run: str
    node: str
    resource: str
    found_from: int
    found_to: int
    stays: int
    response_mean_ms: float
    response_p50_ms: float
    response_p99_ms: float | None


@dataclass(frozen=True, slots=True)
class CorrelationRow:
    run: str
    stage: str
    domain: str
    pairs: int
    pearson: float | None
    pearson_p: float | None
    spearman: float | None
    spearman_p: float | None


@dataclass(frozen=True, slots=True)
class DifferenceRow:
    """One figure of `second` less that of `first`, with its interval by block bootstrap.

    `within` is what both have in common: the run when domains are compared, the domain when runs are. `certain` when
    the interval, widened by what clocks may be off, is on one side of zero and clocks are off by at most half of it.
    """

    stage: str
    within: str
    first: str
    second: str
    measure: str
    publications: int
    first_count: int
    second_count: int
    first_ms: float
    second_ms: float
    difference_ms: float
    low_ms: float
    high_ms: float
    margin_ms: float | None
    blocks: int
    certain: bool


@dataclass(frozen=True, slots=True)
class EndingRow:
    """How the publications of a run ended, and what was seen more than once."""

    run: str
    publications: int
    complete: int
    lost: int
    not_observed: int
    no_start: int
    no_end: int
    deliveries: int
    deliveries_given_up: int
    duplicate_deliveries: int
    duplicate_records: int


@dataclass(frozen=True, slots=True)
class ReceiverRow:
    """What a node, or a subscriber at it, should have got from its first publication to its last, while observed.

    `unknown` were due while it was not observed; `after_last` were published when it had got its last: it had left, or
    everything was lost from then on.
    """

    run: str
    node: str
    subscriber: str | None
    expected: int
    received: int
    missed: int
    missed_share: float | None
    unknown: int
    after_last: int


@dataclass(frozen=True, slots=True)
class HoleRow:
    """A time in which a node was not observed, in seconds of the run; None: from ever, or for ever."""

    run: str
    node: str
    from_s: float | None
    to_s: float | None
    why: str


@dataclass(frozen=True, slots=True)
class LoadRow:
    """One offered load: `achieved` is completed publications a second, from the first start to the last delivery."""

    run: str
    load: float
    publications: int
    completed: int
    achieved: float | None
    keeps_up: bool


@dataclass(frozen=True, slots=True)
class SaturationRow:
    """The largest load that was kept up with before one that was not; `reached` is False when all were."""

    run: str
    reached: bool
    keeps_up_to: float | None
    fails_at: float | None


@dataclass(frozen=True, slots=True)
class TimeRow:
    run: str
    domain: str
    second: float
    count: int
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class HistogramRow:
    """A coarse picture of a distribution, for plots."""

    run: str
    stage: str
    domain: str
    from_ms: float
    to_ms: float
    count: int


@dataclass(frozen=True, slots=True)
class ClockRow:
    """One straight piece of a clock against its reference: how far ahead its wall clock is, and how fast that grows.

    A clock that stepped has several. Without a margin nothing was estimated, and wall clocks are believed.
    """

    run: str
    reference: str
    clock: str
    piece: int
    from_s: float | None
    ahead_ms: float
    drift_ppm: float
    margin_ms: float | None
    estimated: bool
    exchanges: int


@dataclass(frozen=True, slots=True)
class RunNodeRow:
    """`wall_moved_ms`: how much the wall clock moved against the monotonic one while the run lasted."""

    run: str
    node: str
    clock: str
    rows: int
    wall_moved_ms: float


@dataclass(frozen=True, slots=True)
class FileRow:
    run: str
    file: str
    state: str
    schema: int
    rows: int | None
    remark: str


@dataclass(frozen=True, slots=True)
class QualityRow:
    """What could not be used, and where from."""

    what: str
    count: int
