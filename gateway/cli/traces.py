"""Plugs tracing into a hub or a gateway."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gateway.cli.errors import CommandError
from gateway.tracing import TraceForm, TracesConfig
from identifiers import Naming
from storage.private import PrivateFileError
from storage.queues import QueueObserver

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
    from gateway.cli.trace_events import observer_for
    from perf.traces.formats import Format, have_parquet
    from perf.traces.gateway_events import GatewayTracer
    from perf.traces.naming import items_of
    from perf.traces.queue_events import QueueTracer
    from perf.traces.run import Parameter, new_run, software_version
    from perf.traces.sampling import Sampler
    from perf.traces.writer import TraceWriter, WriterConfig

    forms = {TraceForm.AUTO: None, TraceForm.PARQUET: Format.PARQUET, TraceForm.JSON_LINES: Format.JSON_LINES}
    form = forms[config.form]
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
