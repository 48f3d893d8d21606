"""The numbers for Prometheus, collected when somebody asks. `docs/metrics.md` says what each means.

The data path only counts in plain integers; here they are given names and labels.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from exchange.model import ExchangeCounters
from gateway import __version__
from gateway.protocols.descriptor import Figure
from gateway.telemetry.series import BOUNDS, Latency
from gateway.telemetry.telemetry import Telemetry
from push_hub.health import Check, QueueLevel
from storage.clock import steady

MAX_LABELS = 200
"""Values of one label; what more there are is summed up as `other`."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """What is not counted from events but asked for at the moment."""

    name: str
    checks: tuple[Check, ...]
    queues: tuple[QueueLevel, ...]
    subscriptions: int
    topics: int
    owed: int
    dead: int
    node_up: bool
    nodes: int
    links: int
    items_published: int
    items_subscribed: int
    filters: int
    matches: int | None
    matched: int
    wanted: int
    frames: dict[str, int]
    drops: dict[str, int]
    figures: tuple[tuple[str, Figure], ...]
    """What protocols say of themselves, by their labels."""
    exchange: ExchangeCounters | None
    behind: int
    """Sessions that have not taken all that they want."""
    viewers: int
    passed_over: int
    actions: dict[str, int]
    refused: int
    log_dropped: int
    alone: bool = False
    """A hub without a network: there are no metrics of one."""


class _Metrics(Collector):
    def __init__(self, telemetry: Telemetry, gauges: Gauges) -> None:
        self._telemetry = telemetry
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        yield from self._of_gateway()
        yield from self._of_hub()
        if not self._gauges.alone:
            yield from self._of_network()
            yield from self._of_exchange()
            yield from self._of_protocols()

    def _of_gateway(self) -> Iterator[Metric]:
        telemetry, gauges = self._telemetry, self._gauges
        info = GaugeMetricFamily("psph_info", "Which gateway this is; always 1.", labels=["name", "version"])
        info.add_metric([gauges.name, __version__], 1)
        yield info
        health = GaugeMetricFamily("psph_health", "1 when a check of readiness is well.", labels=["check"])
        for check in gauges.checks:
            health.add_metric([check.name], float(check.ok))
        yield health
        yield _counter("psph_events", "Events by name.", "event", telemetry.counted)
        yield CounterMetricFamily("psph_telemetry_faults", "Events that could not be taken in.", telemetry.faults)
        yield CounterMetricFamily("psph_log_lines_dropped", "Log lines nobody took in time.", gauges.log_dropped)
        yield GaugeMetricFamily(
            "psph_clock_stepped_seconds", "By how much the system's clock was set since the start.", steady.stepped()
        )
        yield GaugeMetricFamily("psph_admin_viewers", "Open dashboards.", gauges.viewers)
        yield CounterMetricFamily(
            "psph_admin_snapshots_passed_over", "Snapshots not sent to slow viewers.", gauges.passed_over
        )
        yield _counter("psph_admin_actions", "Actions of operators that did something.", "action", gauges.actions)
        yield CounterMetricFamily("psph_admin_refused", "Requests to the admin port that were refused.", gauges.refused)

    def _of_hub(self) -> Iterator[Metric]:
        telemetry, gauges = self._telemetry, self._gauges
        yield CounterMetricFamily("psph_hub_pings", "Pings taken.", telemetry.counted["PingAccepted"])
        yield _counter("psph_hub_fetches", "Fetches of topics by outcome.", "outcome", telemetry.fetches)
        accepted = telemetry.accepted.total
        origins = {"here": accepted - telemetry.from_network, "network": telemetry.from_network}
        yield _counter("psph_hub_publications", "Publications accepted, by where from.", "origin", origins)
        yield CounterMetricFamily(
            "psph_hub_publications_refused", "Publications refused for a full queue.", telemetry.refused_publications
        )
        outcomes = {
            "delivered": telemetry.delivered.total,
            "failed": telemetry.failed.total - telemetry.given_up,
            "given_up": telemetry.given_up,
        }
        yield _counter("psph_hub_deliveries", "Tries to deliver, by outcome.", "outcome", outcomes)
        yield _histogram("psph_hub_intake_seconds", "From a ping to its publication.", telemetry.intake)
        yield _histogram("psph_hub_delivery_seconds", "From acceptance to a callback's answer.", telemetry.delivery)
        yield GaugeMetricFamily("psph_hub_deliveries_owed", "Deliveries that wait for their next try.", gauges.owed)
        yield GaugeMetricFamily("psph_hub_dead_letters", "Deliveries that were given up and are kept.", gauges.dead)
        yield GaugeMetricFamily("psph_hub_subscriptions", "Verified subscriptions.", gauges.subscriptions)
        yield GaugeMetricFamily("psph_hub_topics", "Topics with subscriptions.", gauges.topics)
        yield _counter("psph_hub_verifications", "Checks of intent.", "outcome", telemetry.verifications)
        waiting = GaugeMetricFamily("psph_hub_queue_waiting", "What waits in a queue.", labels=["queue"])
        bound = GaugeMetricFamily("psph_hub_queue_bound", "From how many on a queue refuses.", labels=["queue"])
        for level in gauges.queues:
            waiting.add_metric([level.name], level.waiting)
            bound.add_metric([level.name], level.bound)
        yield waiting
        yield bound
        yield _counter("psph_hub_limits_reached", "Times that a bound bit.", "limit", telemetry.limits)
        refused = {str(status): count for status, count in telemetry.refused_requests.items()}
        yield _counter("psph_hub_requests_refused", "Requests refused, by status.", "status", refused)
        yield CounterMetricFamily("psph_hub_request_faults", "Requests answered 500.", telemetry.request_faults)
        yield _counter(
            "psph_hub_documents_refused",
            "Documents not published, or sent on whole.",
            "why",
            telemetry.refused_documents,
        )
        yield CounterMetricFamily(
            "psph_canary_rounds", "Rounds of the hub's own canary that arrived.", telemetry.counted["CanaryArrived"]
        )
        took = GaugeMetricFamily("psph_canary_seconds", "How long its last round took.", labels=[])
        if telemetry.canary_seconds is not None:
            took.add_metric([], telemetry.canary_seconds)
        yield took
        yield CounterMetricFamily("psph_store_failures", "Times a store did not work.", telemetry.store_failures)

    def _of_network(self) -> Iterator[Metric]:
        telemetry, gauges = self._telemetry, self._gauges
        counted = telemetry.counted
        yield CounterMetricFamily(
            "psph_psirp_published", "Publications given to the network.", telemetry.published.total
        )
        yield CounterMetricFamily("psph_psirp_arrived", "Publications the network brought.", telemetry.arrived.total)
        yield CounterMetricFamily(
            "psph_psirp_publish_failures", "Publications the network did not take.", counted["PublishFailed"]
        )
        yield CounterMetricFamily(
            "psph_psirp_arrivals_refused",
            "Times an adapter did not take a publication.",
            telemetry.refused_entries,
        )
        yield _histogram("psph_psirp_export_seconds", "From acceptance to being in the network.", telemetry.export)
        yield _histogram("psph_psirp_crossing_seconds", "From another gateway to here.", telemetry.crossing)
        yield GaugeMetricFamily("psph_psirp_node_up", "1 when the node answers.", float(gauges.node_up))
        yield GaugeMetricFamily("psph_psirp_nodes", "Nodes that the node sees.", gauges.nodes)
        yield GaugeMetricFamily("psph_psirp_links", "Links that the node sees.", gauges.links)
        items = GaugeMetricFamily("psph_psirp_items", "Items of the node's applications.", labels=["role"])
        items.add_metric(["published"], gauges.items_published)
        items.add_metric(["subscribed"], gauges.items_subscribed)
        yield items
        yield GaugeMetricFamily("psph_psirp_filters", "Filters that the node sends along.", gauges.filters)
        matches = GaugeMetricFamily("psph_psirp_matches", "Matches a topology manager serves.", labels=[])
        if gauges.matches is not None:
            matches.add_metric([], gauges.matches)
        yield matches
        items = GaugeMetricFamily(
            "psph_psirp_wanted_items", "Items wanted here, by whether the rendezvous matched them.", labels=["matched"]
        )
        items.add_metric(["yes"], gauges.matched)
        items.add_metric(["no"], gauges.wanted - gauges.matched)
        yield items
        yield _counter("psph_psirp_frames", "Frames by what became of them.", "what", gauges.frames)
        yield _counter("psph_psirp_drops", "What the node dropped, by reason.", "reason", gauges.drops)

    def _of_exchange(self) -> Iterator[Metric]:
        counters = self._gauges.exchange
        if counters is not None:
            for name, text, count in (
                ("appended", "Publications that were news.", counters.appended),
                ("repeated", "Publications that came again, known by their origin.", counters.repeated),
                ("same_state", "Other gateways' publications of a state that was here.", counters.same_state),
                ("item_full", "Publications refused since too much of their item waits.", counters.item_full),
                ("taken", "Entries that sessions took.", counters.taken),
                ("refused", "Entries that sessions will never take.", counters.refused),
                ("retried", "Entries that sessions could not take yet.", counters.retried),
                ("trimmed", "Entries that retention let go of.", counters.trimmed),
                ("fell_behind", "Times a session was too far behind and misses something.", counters.fell_behind),
            ):
                yield CounterMetricFamily(f"psph_exchange_{name}", text, count)
            yield GaugeMetricFamily(
                "psph_exchange_sessions_behind", "Sessions that have not taken all they want.", self._gauges.behind
            )

    def _of_protocols(self) -> Iterator[Metric]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for label, figure in self._gauges.figures:
            name = f"psph_{label}_{figure.name}"
            family = families.get(name)
            if family is None:
                kind = CounterMetricFamily if figure.counts else GaugeMetricFamily
                family = families[name] = kind(name, figure.text, labels=[key for key, _ in figure.labels])
            family.add_metric([value for _, value in figure.labels], figure.value)
        yield from families.values()


def exposition(telemetry: Telemetry, gauges: Gauges) -> bytes:
    """Prometheus' text format."""
    return generate_latest(_registry(telemetry, gauges))


def names(telemetry: Telemetry, gauges: Gauges) -> set[str]:
    """Every exported name, as a query would write it; histograms without their suffixes."""
    found = set()
    for metric in _registry(telemetry, gauges).collect():
        found.add(f"{metric.name}_total" if metric.type == "counter" else metric.name)
    return found


def _registry(telemetry: Telemetry, gauges: Gauges) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Metrics(telemetry, gauges))
    ProcessCollector(registry=registry)
    return registry


def _counter(name: str, text: str, label: str, counts: "dict[str, int]") -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    ordered = sorted(counts.items())
    for value, count in ordered[:MAX_LABELS]:
        family.add_metric([value], count)
    if len(ordered) > MAX_LABELS:
        family.add_metric(["other"], sum(count for _, count in ordered[MAX_LABELS:]))
    return family


def _histogram(name: str, text: str, latency: Latency) -> HistogramMetricFamily:
    histogram = latency.histogram
    family = HistogramMetricFamily(name, text)
    family.add_metric([], buckets=list(_cumulated(histogram.counts)), sum_value=histogram.total)
    return family


def _cumulated(counts: Iterable[int]) -> Iterator[tuple[str, float]]:
    running = 0
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), counts, strict=True):
        running += count
        yield bound, running
