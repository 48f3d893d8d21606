"""`psph` as the documentation's tests run it: the real program, with measurements and endurance runs made small.

Three rules, and nothing else differs. Options that count (`COUNTS`) get at most the number here, given or not.
Benchmarks that have no such option get smaller sizes: constants of their modules, which say how much is measured and
never how. And of a suite of workloads, which starts gateways for each of a dozen runs, only two are run (`RUNS`).
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from gateway.cli.main import main

if TYPE_CHECKING:
    from perf.workloads.kinds import RunPlan, WorkloadKind

COUNTS = {
    ("crash", "hub"): {"--kills": 1, "--wide": 10},
    ("crash", "gateway"): {"--kills": 1},
    ("fuzz", "wire"): {"--frames": 500},
    ("fuzz", "hub"): {"--requests": 50},
    ("fuzz", "mqtt"): {"--frames": 500},
    ("crash", "mqtt"): {"--kills": 1},
    ("bench", "crossing"): {"--rounds": 1},
    ("bench", "viewers"): {"--viewers": 2, "--rounds": 1},
    ("bench", "zfilter"): {"--trees": 1},
    ("bench", "forwarding"): {"--rounds": 1, "--frames": 64},
}
RUNS = ("width-1", "hops")
ROWS = 3000
"""Synthetic traces, where a page asks for more (`psph bench traces --rows N`)."""


def counted(words: list[str]) -> list[str]:
    counts = dict(COUNTS.get(tuple(words[:2]), {}))
    if words[:2] == ["bench", "traces"] and "--rows" in words:
        counts["--rows"] = ROWS
    result = list(words)
    for option, most in counts.items():
        if option in result:
            place = result.index(option) + 1
            result[place] = str(min(most, int(result[place])))
        else:
            result += [option, str(most)]
    return result


def made_small(benchmark: str) -> None:
    """Smaller sizes for a benchmark. A name that the module does not have any more is an error."""
    from perf.bench.crossing import CrossingScale as CrossingScale
    from perf.bench.fanout import RoundPlan
    from perf.bench.hub import HubScale as HubScale
    from perf.bench.ingest import IngestScale as IngestScale
    from perf.bench.ingest_search import SearchSteps as SearchSteps
    from perf.bench.mqtt import MqttScale as MqttScale
    from perf.bench.viewers import ViewersScale as ViewersScale
    from perf.workloads.kinds import WorkloadScale as WorkloadScale
    from perf.workloads.kinds import plans

    def two_of_them(kind: "WorkloadKind", scale: WorkloadScale, minutes: float) -> "list[RunPlan]":
        return [plan for plan in plans(kind, scale, minutes) if plan.variant in RUNS]

    hub = HubScale(60, topics=20, rounds=1, subscriptions_a_round=30, starts=1, lives=1, pings_a_life=3)
    load = WorkloadScale(0.5, 10.0, 1, (10,), (1,), (1, 2), (0.0,))
    sizes: dict[str, dict[str, dict[str, object]]] = {
        "matching": {
            "matching": {"QUICK_SIZES": (10, 1000), "CROSSING_SIZES": (1, 2000), "LOOK_UPS": 50, "BLOOM_CAPACITY": 2000}
        },
        "crossing": {"crossing": {name: CrossingScale(1, 1, 2, 0.2) for name in ("QUICK", "FULL")}},
        "fanout": {"fanout": {"QUICK": {1: RoundPlan(1, 0), 1000: RoundPlan(1, 0)}, "QUICK_SLOW": RoundPlan(1, 0)}},
        "hub": {"hub": {"QUICK": hub, "FULL": hub}},
        "mqtt": {"mqtt": {"QUICK": MqttScale(1, 2_000, 500, 20, 2)}},
        "ingest": {
            "ingest": {"QUICK": IngestScale(("hub",), (1400,), False, 4, SearchSteps(0.1, 0.1, 0, 100.0), 1, 0.1)}
        },
        "viewers": {"viewers": {name: ViewersScale(2, 50, 1, 1) for name in ("QUICK", "FULL")}},
        "traces": {"traces": {"CALLBACKS": 10}},
        "workload": {"workload": {"QUICK": load, "plans": two_of_them}},
        "psirp": {"psirp_rendezvous": {"QUICK_SIZES": (100, 200), "QUICK_ROUNDS": 1}},
    }
    for module, values in sizes.get(benchmark, {}).items():
        for name, value in values.items():
            loaded = import_module(f"perf.bench.{module}")
            assert hasattr(loaded, name), f"perf.bench.{module} has no {name}"
            setattr(loaded, name, value)


if __name__ == "__main__":
    given = sys.argv[1:]
    if given[:1] == ["bench"] and len(given) > 1 and "--help" not in given:
        made_small(given[1])
    sys.exit(main(counted(given)))
