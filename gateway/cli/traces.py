"""Plugs tracing into a hub or a gateway: the only place that knows both their events and the traces' records."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from exchange.model import EntryTaken, pack_origins
from gateway.cli.errors import CommandError
from gateway.events import (
    CrossingArrived,
    CrossingOffered,
    CrossingPublished,
    ItemAsked,
    PublishFailed,
)
from gateway.protocols.psirp.adapter import NETWORK
from gateway.protocols.websub.protocol import WEBSUB
from gateway.tracing import TraceForm, TracesConfig
from identifiers import Naming
from perf.traces.formats import Format, have_parquet
from perf.traces.gateway_events import Arrived, GatewayTracer
from perf.traces.naming import items_of
from perf.traces.queue_events import QueueTracer
from perf.traces.run import Parameter, new_run, software_version
from perf.traces.sampling import Sampler
from perf.traces.writer import TraceWriter, WriterConfig
from storage.private import PrivateFileError
from storage.queues import QueueObserver

PUSH = WEBSUB.label
"""The adapter whose publications the hub tells of itself."""
FORMS = {TraceForm.AUTO: None, TraceForm.PARQUET: Format.PARQUET, TraceForm.JSON_LINES: Format.JSON_LINES}

Observer = Callable[[object], None]


@dataclass(frozen=True, slots=True)
class TraceObservers:
    """Whom to tell what happened, and how long things waited; None: nobody wants to know."""

    events: Observer | None = None
    queues: QueueObserver | None = None


@contextmanager
def traced(config: TracesConfig | None, name: str, naming: Naming) -> Iterator[TraceObservers]:
    """Observers that trace while this lasts. Every life is a run of its own."""
    if config is None:
        yield TraceObservers()
        return
    form = FORMS[config.form]
    if form is Format.PARQUET and not have_parquet():
        raise CommandError("traces as parquet need pyarrow: install psph[analytics], or choose the format jsonl")
    life = f"{name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"
    parameters: dict[str, Parameter] = {"node": name, "rate": config.rate}
    run = new_run("live", software_version(), parameters, sampling=config.rate, name=config.run or life)
    try:
        writer = TraceWriter(config.directory / life, run, WriterConfig(form, max_bytes=config.max_bytes))
    except OSError as error:
        raise CommandError(f"traces: {config.directory / life}: {error.strerror}") from None
    except PrivateFileError as error:
        raise CommandError(f"traces: {error}") from None
    tracer = GatewayTracer(writer, name, items_of(naming), sampler=Sampler(config.rate))
    # A sample of what goes through a queue says nothing about the queue.
    queues = QueueTracer(writer, name).observe if config.rate >= 1.0 else None
    try:
        yield TraceObservers(observer_for(tracer), queues)
    finally:
        tracer.flush()
        writer.close()


def observer_for(tracer: GatewayTracer) -> Observer:
    """Every event that a gateway, its hub and its node tell; most go to the hub's tracer as they are."""

    def observe(event: object) -> None:
        match event:
            case CrossingOffered():
                tracer.offered(event.item, event.name, event.body, starts_here=event.via != PUSH)
            case CrossingPublished():
                tracer.published(event.name)
            case PublishFailed():
                tracer.publish_failed(event.name, lasting=event.lasting)
            case ItemAsked():
                tracer.asked(event.item)
            case CrossingArrived():
                draft = event.crossing.draft
                origin = b"" if draft.origin is None else pack_origins((draft.origin,))
                tracer.arrived(
                    Arrived(event.item, draft.name, draft.body, origin, draft.published_ms, event.crossing.hops)
                )
            case EntryTaken():
                if event.key.reader not in (PUSH, NETWORK):
                    tracer.handed_over(pack_origins((event.entry.origin,)), event.key.reader)
            case _:
                tracer.observe_hub(event)

    return observe
