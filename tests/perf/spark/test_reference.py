"""The pipeline beside a plain reimplementation with loops and numpy, on traces whose truth is known."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from perf.pipeline.analysis import Analysis, analyse
from perf.pipeline.statistics import student_p
from perf.traces.run import TRACES
from perf.traces.synth import SynthConfig, Truth, synthesise

pytestmark = pytest.mark.timeout(600)
CONFIG = SynthConfig(30_000, seed=7, loss=0.02, duplicates=0.02, ns_a_byte=300.0, topics=8)


@dataclass(frozen=True)
class Delivery:
    domain: str
    flow: tuple[str, ...]
    start: int
    raw: int
    latency: int
    payload: int
    load: float


@dataclass(frozen=True)
class Seen:
    analysis: Analysis
    truth: Truth
    deliveries: Sequence[Delivery]


@pytest.fixture(scope="module")
def seen(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("synthetic")
    _, truth = synthesise(folder / "run", CONFIG, name="r")
    by_publication = defaultdict(list)
    for row in pq.read_table(folder / "run" / TRACES).to_pylist():
        by_publication[row["publication"]].append(row)
    ahead = CONFIG.clock_offset_ns  # of gw-a
    deliveries = []
    for rows in by_publication.values():
        (start,) = [row for row in rows if row["step"] == "pinged"]
        first: dict[tuple[str, str], dict[str, object]] = {}
        for row in sorted(rows, key=lambda row: row["monotonic_ns"]):
            if row["step"] == "delivered":
                first.setdefault((row["node"], row["delivery"]), row)
        for row in first.values():
            same = row["clock"] == start["clock"]
            key = "monotonic_ns" if same else "wall_ns"
            raw = row[key] - start[key]  # type: ignore[operator]
            corrected = 0 if same else ahead * (1 if row["clock"] == "boot-a" else -1)
            flow = (row["topic"], start["node"], row["node"], row["delivery"])
            deliveries.append(
                Delivery(
                    "push" if same else "psirp",
                    flow,
                    start["wall_ns"],
                    raw,
                    raw - corrected,
                    start["payload"],
                    start["load"],
                )
            )
    return Seen(analyse(session, [folder / "run"], folder / "work"), truth, deliveries)


@pytest.mark.parametrize("domain", ["push", "psirp"])
def test_distribution_and_jitter(seen: Seen, domain: str) -> None:
    mine = [delivery for delivery in seen.deliveries if delivery.domain == domain]
    values = np.array([delivery.latency for delivery in mine]) / 1e6
    (row,) = [
        row
        for row in seen.analysis.latency
        if (row.stage, row.domain, row.by) == ("end_to_end", domain, "all")
    ]  # fmt: skip
    p25, p50, p75, p90, p99, p999 = np.percentile(values, [25, 50, 75, 90, 99, 99.9], method="inverted_cdf")
    assert row.count == len(values)
    # Of one clock to the last digit; across clocks as well as these can be known.
    close = {"rel": 1e-12} if domain == "push" else {"abs": 0.02}
    assert (row.p50_ms, row.p90_ms, row.p99_ms, row.p999_ms) == pytest.approx((p50, p90, p99, p999), **close)
    assert (row.least_ms, row.most_ms) == pytest.approx((values.min(), values.max()), **close)
    assert row.mean_ms == pytest.approx(values.mean(), **(close if domain == "psirp" else {"rel": 1e-9}))
    assert row.iqr_ms == pytest.approx(p75 - p25, **close)
    assert row.margin_ms is not None
    assert (row.margin_ms == 0) is (domain == "push")
    flows = defaultdict(list)
    for delivery in sorted(mine, key=lambda delivery: (delivery.start, delivery.raw)):
        flows[delivery.flow].append(delivery.raw)
    steps = np.concatenate([np.abs(np.diff(delays)) for delays in flows.values()])
    assert row.jitter_ms == pytest.approx(steps.mean() / 1e6, rel=1e-9)


def test_every_load_and_payload_has_its_own_distribution(seen: Seen) -> None:
    for load in CONFIG.loads:
        values = [delivery.latency / 1e6 for delivery in seen.deliveries if delivery.load == load and delivery.domain == "psirp"]  # fmt: skip  # noqa: E501
        (row,) = [
            row
            for row in seen.analysis.latency
            if (row.stage, row.domain, row.by, row.value) == ("end_to_end", "psirp", "load", load)
        ]  # fmt: skip
        assert (row.count, row.p99_ms) == (
            len(values),
            pytest.approx(np.percentile(values, 99, method="inverted_cdf"), abs=0.02),
        )
    counts = [row.count for row in seen.analysis.latency if (row.stage, row.by) == ("end_to_end", "payload")]
    assert sum(counts) == len(seen.deliveries)
    assert len(counts) > 10


def ranks(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]  # type: ignore[no-any-return]


@pytest.mark.parametrize("domain", ["push", "psirp"])
def test_correlation(seen: Seen, domain: str) -> None:
    mine = [delivery for delivery in seen.deliveries if delivery.domain == domain]
    payload = np.array([float(delivery.payload) for delivery in mine])
    latency = np.array([float(delivery.latency) for delivery in mine])
    (row,) = [row for row in seen.analysis.correlation if (row.stage, row.domain) == ("end_to_end", domain)]
    assert row.pairs == len(mine)
    assert row.pearson == pytest.approx(np.corrcoef(payload, latency)[0, 1], abs=1e-4)
    # Latencies within 1/1024 count as tied, which moves ranks a little.
    assert row.spearman == pytest.approx(np.corrcoef(ranks(payload), ranks(latency))[0, 1], abs=1e-3)
    t = row.pearson * np.sqrt((len(mine) - 2) / (1 - row.pearson**2))
    assert row.pearson_p == pytest.approx(two_sided(float(t), len(mine) - 2), rel=1e-4, abs=1e-12)


def two_sided(t: float, degrees: int) -> float:
    """Student's p by adding up the density."""
    from math import lgamma, log, pi

    at = np.linspace(0.0, abs(t), 200_001)
    scale = lgamma((degrees + 1) / 2) - lgamma(degrees / 2) - log(degrees * pi) / 2
    density = np.exp(scale - (degrees + 1) / 2 * np.log1p(at * at / degrees))
    return float(1 - 2 * np.trapezoid(density, at))


@pytest.mark.parametrize(("t", "degrees"), [(0.3, 3), (2.0, 8), (-1.7, 30), (2.6, 2_000), (0.01, 200_000)])
def test_student_is_the_area_under_its_density(t: float, degrees: int) -> None:
    assert student_p(t, degrees) == pytest.approx(two_sided(t, degrees), rel=1e-6)


def test_crossed_against_local(seen: Seen) -> None:
    """Only publications that were delivered both ways; the interval holds the truth."""
    by_kind: dict[str, dict[tuple[str, int], list[int]]] = {"push": defaultdict(list), "psirp": defaultdict(list)}
    for delivery in seen.deliveries:
        by_kind[delivery.domain][delivery.flow[0], delivery.start].append(delivery.latency)
    both = by_kind["push"].keys() & by_kind["psirp"].keys()
    push, psirp = (np.array([v for key in both for v in by_kind[kind][key]]) / 1e6 for kind in ("push", "psirp"))
    rows = {row.measure: row for row in seen.analysis.crossing if row.stage == "end_to_end"}
    assert rows.keys() == {"p50", "p90", "p99", "interquartile range", "deviation"}  # p99.9 would take 10,000
    for name, quantile in (("p50", 50), ("p90", 90), ("p99", 99)):
        row = rows[name]
        truth = float(np.percentile(psirp, quantile) - np.percentile(push, quantile))
        assert (row.publications, row.first_count, row.second_count) == (len(both), len(push), len(psirp))
        assert row.difference_ms == pytest.approx(truth, abs=float(np.percentile(psirp, quantile)) / 32)
        assert row.low_ms <= row.difference_ms <= row.high_ms
    assert rows["p50"].certain
    assert rows["deviation"].first_ms == pytest.approx(push.std(), rel=0.02)


def test_losses_duplicates_offset_and_loads(seen: Seen) -> None:
    (ending,) = seen.analysis.endings
    # Before the first that a receiver gets of a topic, and after its last, nobody can know whether it was there.
    assert (ending.publications, ending.lost + ending.not_observed, ending.duplicate_deliveries) == (
        seen.truth.publications, seen.truth.lost, seen.truth.duplicates,
    )  # fmt: skip
    assert ending.lost >= 0.8 * seen.truth.lost
    assert ending.lost == sum(row.missed for row in seen.analysis.receivers if row.subscriber is None)
    assert ending.deliveries == len(seen.deliveries)
    (clock,) = seen.analysis.clocks
    assert (clock.reference, clock.clock, clock.estimated) == ("boot-a", "boot-b", True)
    assert clock.ahead_ms == pytest.approx(-CONFIG.clock_offset_ns / 1e6, abs=0.05)
    assert abs(clock.ahead_ms + CONFIG.clock_offset_ns / 1e6) < clock.margin_ms
    (saturation,) = seen.analysis.saturation
    assert saturation.reached
    assert saturation.fails_at in (800, 1600)  # capacity is 1,000; 800 is slow to drain in so short a step
    assert sum(row.count for row in seen.analysis.histogram if row.stage == "end_to_end") == len(seen.deliveries)
    assert sum(row.count for row in seen.analysis.over_time) == len(seen.deliveries)
