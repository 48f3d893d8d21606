"""`psph gateway`: run a gateway."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import uvloop

from gateway.cli.errors import CommandError
from gateway.cli.traces import traced
from gateway.config import ConfigError, check, load
from gateway.discovery import DiscoveryError
from gateway.gateway import Gateway, GatewayConfig
from gateway.operations.lifetime import serve
from gateway.operations.places import at, listening_host, state_folder
from gateway.telemetry.complaints import Complaints
from gateway.telemetry.logs import JsonLog
from gateway.telemetry.observers import both
from gateway.telemetry.spans import Spans, SpansMissingError, is_wanted, otlp
from gateway.telemetry.telemetry import Telemetry
from gateway.tracing import TracesConfig
from psirp_stack.authentication.keys import KeyFileError
from psirp_stack.graph import GraphError
from psirp_stack.node.api import NotAttachedError
from psirp_stack.node.config import NodeConfigError
from storage import StorageError

PORT = 8080
EXAMPLES = """
examples:
  psph gateway                                   a network by itself: hub at port 8080, dashboard at 8081, data in
                                                 $XDG_STATE_HOME/psph/gateway; --port, --data and PSPH_... refine it
                                                 (PSPH_HOST: the address that the hub listens on)
  psph gateway --allow-private                   the same, to be tried out with addresses of this machine
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
    parser.add_argument(
        "-c", "--config", type=Path, metavar="FILE", help="the gateway's configuration (default: built in, see below)"
    )
    parser.add_argument("--port", type=int, metavar="P", help=f"without a file: the hub's port (default: {PORT})")
    parser.add_argument("--data", type=Path, metavar="DIR", help="without a file: where everything is kept")
    parser.add_argument(
        "--allow-private", action="store_true", help="without a file: addresses of this machine may be used"
    )
    parser.add_argument(
        "--traces", type=Path, metavar="DIR", help="trace publications to a run below DIR; more in [traces]"
    )
    parser.add_argument("--log", choices=("none", "json"), default="none", help="events as JSON lines on stderr")


def run(args: argparse.Namespace) -> int:
    if args.config is not None and (args.port is not None or args.data is not None or args.allow_private):
        raise CommandError("--port, --data and --allow-private are for a gateway without a file: write them into it")
    try:
        read = partial(load, args.config) if args.config is not None else _built_in(args)
        config = read()
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
            complaints = Complaints("psph gateway")
            observer = both(both(complaints.observe, traces.events), None if log is None else log.observe)
            gateway = Gateway(config, observer=observer, telemetry=telemetry, queues=traces.queues)
            if telemetry is not None and log is not None:
                gateway.log_dropped = lambda: log.dropped
                log.way_of = telemetry.recorder.way_of
            if telemetry is not None and spans is not None:
                telemetry.when_finished = spans.record
            config.memory.enforce_on_stores()
            try:
                uvloop.run(serve(read, config, gateway, partial(print, flush=True), _warn))
            finally:
                complaints.close()
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


def _built_in(args: argparse.Namespace) -> Callable[[], GatewayConfig]:
    """A gateway that needs nothing: a node of its own, which is the whole network until it gets links."""
    port = PORT if args.port is None else args.port
    data = state_folder("gateway") if args.data is None else args.data

    def read() -> GatewayConfig:
        document: dict[str, object] = {
            "store": {"path": str(data.absolute())},
            "hub": {"listen": at(listening_host(), port), "allow_private": args.allow_private, "feeds": True},
            "admin": {"listen": f"127.0.0.1:{0 if port == 0 else port + 1}"},
            "node": {"name": "gateway", "roles": ["rendezvous", "topology"]},
        }
        return check(document, Path.cwd(), "the built-in configuration", os.environ)

    return read


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


def _warn(line: str) -> None:
    print(f"psph gateway: {line}", file=sys.stderr, flush=True)
