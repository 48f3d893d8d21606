"""Spans of a publication's way: one trace for all gateways, and nothing without an endpoint."""

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from exchange.model import Profile
from gateway.events import CrossingArrived, CrossingPublished
from gateway.telemetry import spans
from gateway.telemetry.spans import Spans
from gateway.telemetry.telemetry import Telemetry
from push_hub.delivery.events import Delivered, FanoutFinished, PublicationAccepted
from tests.gateway.telemetry.test_telemetry_events import CROSSING, ITEM, ORIGIN, TOPIC, VERSION, WHO, Clock


def test_what_two_gateways_export_meets_in_one_trace() -> None:
    exporters = InMemorySpanExporter(), InMemorySpanExporter()
    clock = Clock()
    b, a = Telemetry(clock), Telemetry(clock)
    made = {"b": Spans("b", exporters[0]), "a": Spans("a", exporters[1])}
    b.when_finished, a.when_finished = made["b"].record, made["a"].record
    # Nobody is subscribed here: the fan-out is over before the network has the publication.
    b.observe(PublicationAccepted(1, TOPIC, 100, clock.now))
    b.observe(FanoutFinished(1, clock.now))
    assert not b.recorder.ways(TOPIC)[0].version
    b.observe(CrossingPublished(Profile.DOCUMENT, TOPIC, ITEM, VERSION, 100, ORIGIN))
    a.observe(CrossingArrived(TOPIC, ITEM, VERSION, int(clock.now * 1000), 10, is_own=False, crossing=CROSSING))
    a.observe(PublicationAccepted(7, TOPIC, 10, clock.now + 0.1))
    a.observe(Delivered(7, WHO, 200, 1, clock.now + 0.2))
    a.observe(FanoutFinished(7, clock.now + 0.3))
    for one in made.values():
        one.close()
    finished = [span for exporter in exporters for span in exporter.get_finished_spans()]
    assert len({span.context.trace_id for span in finished if span.context is not None}) == 1
    wholes = [span for span in finished if span.name == "publication"]
    assert {span.resource.attributes["service.instance.id"] for span in wholes} == {"a", "b"}
    assert {span.name for span in finished} >= {"published in the network", "delivered, status 200"}
    assert all(span.start_time is not None and span.end_time is not None for span in finished)
    assert all((span.end_time or 0) >= (span.start_time or 0) for span in finished)
    said = " ".join(span.to_json() for span in finished)
    assert "s3cret" not in said
    assert "k3y" not in said
    assert (a.faults, b.faults) == (0, 0)


def test_nothing_is_wanted_unless_the_environment_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in spans.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    assert not spans.is_wanted()
    monkeypatch.setenv(spans.ENDPOINTS[1], "http://127.0.0.1:4318")
    assert spans.is_wanted()
