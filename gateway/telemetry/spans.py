"""OpenTelemetry spans, as an option: each publication's way as a trace.

The trace id follows from the network's version id, which is the same at every gateway, so what two gateways export
meets in one trace. Spans are made when a fan-out is finished, from the flight recorder's steps: nothing is measured for
their sake. Needs the extra `otel`; without it, or without an endpoint, nothing here is used.
"""

import hashlib
import os
from typing import TYPE_CHECKING

from gateway.telemetry.recorder import PublicationPath

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
NANOSECONDS = 1_000_000_000


class SpansMissingError(Exception):
    """Spans are wanted, and the libraries for them are not installed."""


def is_wanted() -> bool:
    return any(os.environ.get(name) for name in ENDPOINTS)


def otlp() -> "SpanExporter":
    """To where the environment says."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise SpansMissingError(
            f"{' or '.join(ENDPOINTS)} is set, but OpenTelemetry is not installed: pip install 'psph[otel]'"
        ) from None
    return OTLPSpanExporter()


class Spans:
    def __init__(self, gateway: str, exporter: "SpanExporter") -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource.create({"service.name": "psph", "service.instance.id": gateway})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        # A thread of its own with a bounded queue: a collector that is away costs spans, not deliveries.
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("psph")

    def record(self, way: PublicationPath) -> None:
        """Make the spans of a finished fan-out."""
        from opentelemetry.trace import set_span_in_context

        steps = sorted(way.steps, key=lambda step: step.at)
        if not steps:
            return
        attributes: dict[str, str | int] = {"psph.topic": way.topic, "psph.delivered": way.delivered}
        if way.publication is not None:
            attributes["psph.publication"] = way.publication
        if way.version is not None:
            attributes["psph.version"] = way.version
        whole = self._tracer.start_span("publication", _parent(way), start_time=_ns(steps[0].at), attributes=attributes)
        inside = set_span_in_context(whole)
        before = steps[0].at
        for step in steps:
            span = self._tracer.start_span(
                step.what,
                inside,
                start_time=_ns(before),
                attributes={"psph.domain": step.domain, "psph.detail": step.detail},
            )
            span.end(_ns(step.at))
            before = step.at
        whole.end(_ns(before))

    def close(self) -> None:
        self._provider.shutdown()


def _parent(way: PublicationPath) -> "Context":
    """A span that nobody made, with ids that every gateway computes alike."""
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    digest = hashlib.sha256((way.version or f"{way.topic} {way.publication} {way.began}").encode()).digest()
    context = SpanContext(
        int.from_bytes(digest[:16]), int.from_bytes(digest[16:24]), True, TraceFlags(TraceFlags.SAMPLED)
    )
    return set_span_in_context(NonRecordingSpan(context))


def _ns(seconds: float) -> int:
    return int(seconds * NANOSECONDS)
