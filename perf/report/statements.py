"""What the figures say, in plain sentences: for people who will not read the tables."""

import math
from collections.abc import Sequence
from itertools import pairwise

from perf.pipeline.analysis import Analysis
from perf.pipeline.statistics import FEW, SIGNIFICANT
from perf.pipeline.tables import CorrelationRow, DifferenceRow, SaturationRow
from perf.report.bench_results import MatchingPoint

PROTOTYPE_MEAN_MS = 4.58
PROTOTYPE_P = 0.41
PROTOTYPE_TOPICS = 50


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
    ]


def crossing(rows: Sequence[DifferenceRow]) -> list[str]:
    """Whether crossing changes latency significantly. The main question."""
    found = []
    for row in rows:
        if row.stage != "end_to_end":
            continue
        added = row.second_p50_ms - row.first_p50_ms
        counts = f"{row.second_count:,} crossed and {row.first_count:,} local deliveries"
        if min(row.first_count, row.second_count) < FEW:
            found.append(f"{row.within}: too few deliveries to say whether crossing changes latency ({counts}).")
        elif row.significant:
            word = "adds" if added >= 0 else "saves"
            found.append(
                f"{row.within}: crossing PSIRP changes latency significantly: it {word} {abs(added):.3g} ms to the "
                f"median ({row.first_p50_ms:.3g} ms to {row.second_p50_ms:.3g} ms); a crossed delivery is the slower "
                f"one in {row.slower:.0%} of pairs ({_p(row.p)}, Mann-Whitney U, {counts})."
            )
        else:
            found.append(
                f"{row.within}: crossing PSIRP does not change latency significantly ({_p(row.p)}, Mann-Whitney U, "
                f"{counts}; medians {row.first_p50_ms:.3g} ms local, {row.second_p50_ms:.3g} ms crossed)."
            )
    return found or ["No run has both crossed and local deliveries, so nothing can be said about crossing."]


def between_runs(rows: Sequence[DifferenceRow]) -> list[str]:
    found = []
    for row in rows:
        if row.stage != "end_to_end":
            continue
        if min(row.first_count, row.second_count) < FEW:
            found.append(f"{row.second} against {row.first} ({row.within}): too few deliveries to compare.")
            continue
        if not row.significant:
            verdict = "no significant difference"
        else:
            verdict = "significantly slower" if row.slower > 0.5 else "significantly faster"
        found.append(
            f"{row.second} against {row.first}, end to end in {row.within}: {verdict} (median "
            f"{row.first_p50_ms:.3g} ms to {row.second_p50_ms:.3g} ms, slower in {row.slower:.0%} of pairs, "
            f"{_p(row.p)})."
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
        f"PSIRP, {row.no_end:,} have no end and {row.no_start:,} no start in the traces; "
        f"{row.duplicate_deliveries:,} deliveries were made more than once."
        for row in analysis.endings
    ]


def _figure(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _p(p: float) -> str:
    return "p < 0.0001" if p < 0.0001 else f"p = {p:.2g}"
