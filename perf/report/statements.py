"""What the figures say, in plain sentences: for people who will not read the tables."""

import math
from collections.abc import Sequence
from itertools import pairwise

from perf.pipeline.analysis import Analysis
from perf.pipeline.comparisons import FEW
from perf.pipeline.statistics import SIGNIFICANT
from perf.pipeline.tables import CorrelationRow, DifferenceRow, ReceiverRow, SaturationRow
from perf.report.bench_results import MatchingPoint

PROTOTYPE_MEAN_MS = 4.58
PROTOTYPE_P = 0.41
PROTOTYPE_TOPICS = 50
MOST_RECEIVERS = 10


def statements(analysis: Analysis, matching: Sequence[MatchingPoint] = ()) -> list[str]:
    return [
        *crossing(analysis.crossing),
        *between_runs(analysis.between_runs),
        *payload(analysis.correlation),
        *prototype(analysis),
        *list_against_bloom(matching),
        *what_keys(matching),
        *saturation(analysis.saturation),
        *endings(analysis),
        *losses(analysis.receivers),
    ]


def crossing(rows: Sequence[DifferenceRow]) -> list[str]:
    """Whether crossing changes latency. The main question: nothing is claimed that clocks could have made up."""
    found = []
    for row in rows:
        if row.stage != "end_to_end" or row.measure != "p50":
            continue
        counts = f"{row.publications:,} publications that were delivered both ways"
        medians = f"{row.first_ms:.3g} ms local, {row.second_ms:.3g} ms crossed"
        if row.publications < FEW:
            found.append(f"{row.within}: too few deliveries to say whether crossing changes latency ({counts}).")
        elif row.certain:
            word = "adds" if row.difference_ms >= 0 else "saves"
            found.append(
                f"{row.within}: crossing PSIRP {word} {abs(row.difference_ms):.3g} ms to the median ({medians}; 95 % "
                f"interval {_interval(row)}{_clocks(row)}; {counts}, paired){_tails(rows, row)}."
            )
        elif row.margin_ms is None:
            found.append(
                f"{row.within}: nothing can be said about what crossing costs: the clocks of the two sides could not "
                f"be compared, since nothing was exchanged in both directions (apparent medians {medians})."
            )
        elif row.low_ms <= 0 <= row.high_ms:
            found.append(
                f"{row.within}: crossing PSIRP shows no difference in the median that would not come by chance "
                f"({medians}; 95 % interval {_interval(row)}{_clocks(row)}; {counts}, paired)."
            )
        else:
            found.append(
                f"{row.within}: nothing can be said about what crossing costs: the clocks may be off by "
                f"{row.margin_ms:.3g} ms, which is not well below the apparent {row.difference_ms:+.3g} ms ({medians})."
            )
    return found or ["No run has both crossed and local deliveries, so nothing can be said about crossing."]


def _tails(rows: Sequence[DifferenceRow], of: DifferenceRow) -> str:
    """The same at the percentiles that there were enough deliveries for."""
    said = [
        f"{row.measure} {row.difference_ms:+.3g} ms ({_interval(row)})"
        for row in rows
        if (row.stage, row.within) == (of.stage, of.within) and row.measure in ("p99", "p99.9")
    ]
    return f"; {', '.join(said)}" if said else ""


def _interval(row: DifferenceRow) -> str:
    return f"{row.low_ms:+.3g} to {row.high_ms:+.3g} ms"


def _clocks(row: DifferenceRow) -> str:
    return f", clocks off by {row.margin_ms:.2g} ms at most" if row.margin_ms else ""


def between_runs(rows: Sequence[DifferenceRow]) -> list[str]:
    found = []
    for row in rows:
        if row.stage != "end_to_end" or row.measure != "p50":
            continue
        what = f"{row.second} against {row.first}, end to end in {row.within}"
        if row.publications < FEW:
            found.append(f"{what}: too few deliveries to compare.")
            continue
        verdict = "no difference in the median that would not come by chance"
        if row.certain:
            verdict = "slower" if row.difference_ms > 0 else "faster"
        elif row.low_ms > 0 or row.high_ms < 0:
            off = "and were not compared" if row.margin_ms is None else f"by {row.margin_ms:.2g} ms"
            verdict = f"a difference in the median that the clocks may have made up, which may be off {off}"
        found.append(
            f"{what}: {verdict} (median {row.first_ms:.3g} ms to {row.second_ms:.3g} ms, 95 % interval of the "
            f"difference {_interval(row)}){_tails(rows, row)}."
        )
    return found


def payload(rows: Sequence[CorrelationRow]) -> list[str]:
    found = []
    for row in rows:
        if row.stage not in ("end_to_end", "total_push_d") or row.spearman is None or row.spearman_p is None:
            continue
        figures = f"Spearman {row.spearman:+.3f}, {_p(row.spearman_p)}, {row.pairs:,} deliveries"
        what = f"{row.run}: delay ({row.stage}, {row.domain})"
        if row.spearman_p >= SIGNIFICANT:
            found.append(
                f"{what} is not significantly related to payload ({figures}), as in the prototype (p = {PROTOTYPE_P})."
            )
        else:
            found.append(
                f"{what} is related to payload ({figures}), which accounts for {row.spearman**2:.1%} of its variation. "
                f"The prototype found no relation (p = {PROTOTYPE_P}); the more deliveries, the smaller the relation "
                "that can be told from none."
            )
    return found


def prototype(analysis: Analysis) -> list[str]:
    """Beside what the original prototype found, where a run measured the same thing."""
    found = []
    clocks: dict[str, set[str]] = {}
    for node in analysis.nodes:
        clocks.setdefault(node.run, set()).add(node.clock)
    for row in analysis.latency:
        if row.by == "all" and row.stage == "total_push_d":
            times = row.mean_ms / PROTOTYPE_MEAN_MS
            compared = f"{times:.2g} times" if times >= 1 else f"{times:.0%} of"
            machines = len(clocks.get(row.run, ()))
            where = (
                "all of ours ran on one machine, without a cable but sharing its cores"
                if machines == 1
                else f"ours ran on {machines} machines"
            )
            found.append(
                f"{row.run}: TotalPushD is {row.mean_ms:.3g} ms on average ({row.count:,} measured), {compared} the "
                f"prototype's {PROTOTYPE_MEAN_MS} ms. That was Java and Blackhawk on two PCs and a switch; {where}, so "
                "the two figures compare systems, not methods."
            )
    return found


def list_against_bloom(points: Sequence[MatchingPoint]) -> list[str]:
    """Where a filter begins to be faster than a scan, keyed by topic as in the prototype."""
    times = {(point.structure, point.topics): point.microseconds for point in points if point.keyed_by == "topic"}
    sizes = sorted(size for structure, size in times if structure == "list" and ("bloom", size) in times)
    if not sizes:
        return []
    faster = {size: times["bloom", size] <= times["list", size] for size in sizes}
    theirs = f"the prototype's crossed at about {PROTOTYPE_TOPICS}"
    if all(faster.values()):
        return [f"A Bloom filter is faster than a list from {sizes[0]:,} topics on, the fewest measured; {theirs}."]
    if not any(faster.values()):
        return [f"A list is faster than a Bloom filter up to {sizes[-1]:,} topics, the most measured; {theirs}."]
    steps = [(one, other) for one, other in pairwise(sizes) if not faster[one] and faster[other]]
    if len(steps) != 1 or faster[sizes[0]]:
        return [f"List and Bloom filter take turns in being the faster one: the measurement is too noisy; {theirs}."]
    below, above = steps[0]
    ratios = [math.log(times["list", size] / times["bloom", size]) for size in (below, above)]
    share = ratios[0] / (ratios[0] - ratios[1])
    at = math.exp(math.log(below) + share * (math.log(above) - math.log(below)))
    about = _figure(float(f"{at:.2g}"))
    return [
        (
            f"A Bloom filter is faster than a list above about {about} topics (measured at {below:,} and {above:,}); "
            f"{theirs}. Where they cross depends on what a comparison costs against the filter's hashes, so it differs "
            "with language and library."
        )
    ]


def what_keys(points: Sequence[MatchingPoint]) -> list[str]:
    """Whether a structure keyed by topic answers faster than one keyed by subscriber, at the most topics."""
    found = []
    times = {(point.structure, point.keyed_by, point.topics): point.microseconds for point in points}
    for structure in dict.fromkeys(point.structure for point in points):
        both = [
            size
            for name, key, size in times
            if (name, key) == (structure, "topic") and (name, "subscriber", size) in times
        ]
        if both:
            size = max(both)
            by_topic, by_subscriber = (times[structure, key, size] for key in ("topic", "subscriber"))
            word = "faster" if by_topic < by_subscriber else "not faster"
            found.append(
                f"{structure}, {size:,} topics: keyed by topic is {word} than keyed by subscriber "
                f"({_figure(by_topic)} µs against {_figure(by_subscriber)} µs); in the prototype it was faster."
            )
    return found


def saturation(rows: Sequence[SaturationRow]) -> list[str]:
    found = []
    for row in rows:
        if not row.reached:
            found.append(f"{row.run}: every offered load was kept up with, the largest {row.keeps_up_to:g}/s.")
        elif row.keeps_up_to is None:
            found.append(f"{row.run}: already the smallest load, {row.fails_at:g}/s, was not kept up with.")
        else:
            found.append(
                f"{row.run}: saturates between {row.keeps_up_to:g} and {row.fails_at:g} publications a second."
            )
    return found


def endings(analysis: Analysis) -> list[str]:
    return [
        f"{row.run}: of {row.publications:,} publications {row.complete:,} are complete, {row.lost:,} were lost in "
        f"PSIRP, {row.not_observed:,} were received by nobody who was observed, {row.no_end:,} have no end and "
        f"{row.no_start:,} no start in the traces; {row.duplicate_deliveries:,} deliveries were made more than once."
        for row in analysis.endings
    ]


def losses(rows: Sequence[ReceiverRow]) -> list[str]:
    """Receivers that missed something while they were looked at, the worst first; and who was not looked at."""
    found = []
    for row in sorted(rows, key=lambda row: -(row.missed_share or 0.0)):
        if row.subscriber is None and row.missed and row.missed_share is not None:
            found.append(
                f"{row.run}: {row.node} missed {row.missed:,} of {row.expected:,} publications "
                f"({row.missed_share:.2%}) that were sent to it while it was observed."
            )
    for row in rows:
        if row.subscriber is None and row.unknown:
            found.append(
                f"{row.run}: whether {row.node} got {row.unknown:,} publications is not known: its traces have a hole."
            )
    return found[:MOST_RECEIVERS]


def _figure(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _p(p: float) -> str:
    return "p < 0.0001" if p < 0.0001 else f"p = {p:.2g}"
