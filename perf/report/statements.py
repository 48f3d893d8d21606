"""What the figures say, in plain sentences: for people who will not read the tables."""

from collections.abc import Sequence

from perf.pipeline.analysis import Analysis
from perf.pipeline.statistics import FEW, SIGNIFICANT
from perf.pipeline.tables import CorrelationRow, DifferenceRow, SaturationRow

PROTOTYPE_MEAN_MS = 4.58
PROTOTYPE_P = 0.41


def statements(analysis: Analysis) -> list[str]:
    return [
        *crossing(analysis.crossing),
        *between_runs(analysis.between_runs),
        *payload(analysis.correlation),
        *prototype(analysis),
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
        related = "is related" if row.spearman_p < SIGNIFICANT else "is not significantly related"
        found.append(
            f"{row.run}: delay ({row.stage}, {row.domain}) {related} to payload "
            f"(Spearman {row.spearman:+.3f}, {_p(row.spearman_p)}, {row.pairs:,} deliveries)."
        )
    return found


def prototype(analysis: Analysis) -> list[str]:
    """Beside what the original prototype found, where a run measured the same thing."""
    found = []
    for row in analysis.latency:
        if row.by == "all" and row.stage == "total_push_d":
            found.append(
                f"{row.run}: TotalPushD is {row.mean_ms:.3g} ms on average ({row.count:,} measured); the prototype, in "
                f"Java between two PCs on a switch, had {PROTOTYPE_MEAN_MS} ms, and found no relation to payload "
                f"(p = {PROTOTYPE_P})."
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


def _p(p: float) -> str:
    return "p < 0.0001" if p < 0.0001 else f"p = {p:.2g}"
