"""`psph gateway`: run a gateway."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import uvloop

from gateway.cli.errors import CommandError
from gateway.cli.traces import traced
from gateway.config import ConfigError, load
from gateway.discovery import DiscoveryError
from gateway.discovery.events import RegistrationFailed
from gateway.gateway import Gateway
from gateway.operations.lifetime import serve
from gateway.telemetry.logs import JsonLog
from gateway.telemetry.spans import Spans, SpansMissingError, is_wanted, otlp
from gateway.telemetry.telemetry import Telemetry, both
from gateway.tracing import TracesConfig
from psirp_stack.authentication.keys import KeyFileError
from psirp_stack.graph import GraphError
from psirp_stack.node.api import NotAttachedError
from psirp_stack.node.config import NodeConfigError
from serving.tls import CertificateRefused
from storage import StorageError

EXAMPLES = """
examples:
  psph config example > gateway.toml             a complete configuration with comments
  psph gateway -c gateway.toml
  psph gateway -c gateway.toml --log json        every event as one line of JSON on stderr
  PSPH_HUB__LISTEN=0.0.0.0:80 psph gateway -c gateway.toml
  psph gateway -c gateway.toml --traces var/traces       then psph report var/traces/*
  psph explain TOPIC --socket var/gateway/node.sock      why a topic does not arrive

It is killed without harm: what a publisher or subscriber was told is on disk, and what was missed is asked for.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run a gateway: a WebSub hub whose publications cross a PSIRP network to the gateways of other domains, and\n"
        "whose subscribers get what is published there. SIGTERM stops it gracefully, SIGHUP reloads what can be."
    )
    parser.epilog = EXAMPLES
    parser.add_argument("-c", "--config", type=Path, required=True, metavar="FILE", help="the gateway's configuration")
    parser.add_argument(
        "--traces", type=Path, metavar="DIR", help="trace publications to a run below DIR; more in [traces]"
    )
    parser.add_argument("--log", choices=("none", "json"), default="none", help="events as JSON lines on stderr")


def run(args: argparse.Namespace) -> int:
    try:
        config = load(args.config)
        if args.traces is not None:
            kept = config.traces or TracesConfig(args.traces)
            config = replace(config, traces=replace(kept, directory=args.traces))
        with (
            _log(config.name, args.log) as log,
            _spans(config.name) as spans,
            traced(config.traces, config.name, config.naming) as traces,
        ):
            # Logs and spans name publications by what the telemetry's recorder knows of them.
            telemetry = None if config.admin is None and log is None and spans is None else Telemetry()
            observer = both(both(_complain, traces), None if log is None else log.observe)
            gateway = Gateway(config, observer=observer, telemetry=telemetry)
            if telemetry is not None and log is not None:
                gateway.log_dropped = lambda: log.dropped
                log.way_of = telemetry.recorder.way_of
            if telemetry is not None and spans is not None:
                telemetry.when_finished = spans.record
            uvloop.run(serve(args.config, config, gateway, partial(print, flush=True), _warn))
    except (
        ConfigError,
        DiscoveryError,
        NodeConfigError,
        GraphError,
        KeyFileError,
        NotAttachedError,
        SpansMissingError,
        StorageError,
        OSError,
    ) as error:
        raise CommandError(str(error)) from error
    return 0


@contextmanager
def _log(name: str, form: str) -> Iterator[JsonLog | None]:
    if form != "json":
        yield None
        return
    log = JsonLog(sys.stderr, name)
    log.start()
    try:
        yield log
    finally:
        log.close()


@contextmanager
def _spans(name: str) -> Iterator[Spans | None]:
    if not is_wanted():
        yield None
        return
    spans = Spans(name, otlp())
    try:
        yield spans
    finally:
        spans.close()


def _complain(event: object) -> None:
    """What an operator must know and would see nowhere else."""
    if isinstance(event, RegistrationFailed):
        again = "" if event.retry_in is None else f"; trying again in {event.retry_in:.0f} s"
        _warn(f"{event.name}: {event.reason}{again}")
    elif isinstance(event, CertificateRefused):
        _warn(f"the certificate is not replaced: {event.reason}")


def _warn(line: str) -> None:
    print(f"psph gateway: {line}", file=sys.stderr, flush=True)
