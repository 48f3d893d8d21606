"""`psph bench models`: what was published, ours, and a verdict that is not always the same."""

import argparse

from perf.bench.models import BENCHMARK, ReproductionVerdict, metro


def test_published_experiments_are_judged_one_by_one() -> None:
    outcome = BENCHMARK.run(argparse.Namespace(quick=True, seed=3))
    assert all(bar.holds for bar in outcome.bars)
    verdicts = {(row["experiment"], row["case"]): row["verdict"] for row in outcome.results}
    assert len(verdicts) == len(outcome.results) >= 55
    expected = {
        ("reliable pattern 4", "40/40 15/15, lifetime 10, success"): ReproductionVerdict.REFUTED,
        ("reliable pattern 4", "40/40 15/15, lifetime 30, success"): ReproductionVerdict.CONFIRMED,
        ("effort, reduction in %", "fixed-sensors"): ReproductionVerdict.REFUTED,
        ("effort, reduction in %", "smartphones"): ReproductionVerdict.CONFIRMED,
        ("metro, printed means", "path 1, 2/s"): ReproductionVerdict.REFUTED,
        ("metro, analytic", "path 1, 4.5/s"): ReproductionVerdict.CONFIRMED,
        ("call records", "antenna 9, analytic"): ReproductionVerdict.UNDECIDED,
    }
    assert {case: verdicts[case] for case in expected} == expected
    assert all(row["reason"] for row in outcome.results)


def test_the_gap_that_the_text_does_not_show_is_shown() -> None:
    [gap] = [one for one in metro() if (one.experiment, one.case) == ("metro, largest gap", "path 1")]
    assert gap.ours is not None
    assert round(gap.ours, 2) == 0.82
    assert gap.verdict is ReproductionVerdict.REFUTED
