"""`psph gateway`: run a gateway."""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

import uvloop

from gateway.cli.errors import CommandError
from gateway.config import ConfigError, load
from gateway.gateway import Gateway, GatewayConfig
from gateway.telemetry.logs import JsonLog
from gateway.telemetry.spans import Spans, SpansMissingError, is_wanted, otlp
from gateway.telemetry.telemetry import Telemetry
from psirp_stack.authentication.keys import KeyFileError
from psirp_stack.graph import GraphError
from psirp_stack.node.api import NotAttachedError
from psirp_stack.node.config import NodeConfigError
from storage import StorageError

EXAMPLES = """
examples:
  psph config example > gateway.toml             a complete configuration with comments
  psph gateway -c gateway.toml
  psph gateway -c gateway.toml --log json        every event as one line of JSON on stderr
  PSPH_HUB__LISTEN=0.0.0.0:80 psph gateway -c gateway.toml
  psph explain TOPIC --socket var/gateway/node.sock      why a topic does not arrive

It is killed without harm: what a publisher or subscriber was told is on disk, and what was missed is asked for.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run a gateway: a WebSub hub whose publications cross a PSIRP network to the gateways of other domains, and\n"
        "whose subscribers get what is published there. SIGTERM stops it gracefully."
    )
    parser.epilog = EXAMPLES
    parser.add_argument("-c", "--config", type=Path, required=True, metavar="FILE", help="the gateway's configuration")
    parser.add_argument("--log", choices=("none", "json"), default="none", help="events as JSON lines on stderr")


def run(args: argparse.Namespace) -> int:
    try:
        config = load(args.config)
        uvloop.run(_serve(config, JsonLog(sys.stderr, config.name) if args.log == "json" else None))
    except (
        ConfigError,
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


async def _serve(config: GatewayConfig, log: JsonLog | None = None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    telemetry = Telemetry() if config.admin is not None or log is not None or is_wanted() else None
    gateway = Gateway(config, observer=None if log is None else log.observe, telemetry=telemetry)
    if log is not None:
        if telemetry is not None:
            log.way_of = telemetry.recorder.way_of
        gateway.log_dropped = lambda: log.dropped
        log.start()
    spans: Spans | None = None
    if telemetry is not None and is_wanted():
        spans = Spans(config.name, otlp())
        telemetry.when_finished = spans.record
    try:
        await gateway.start()
        where = "" if gateway.hub.url == gateway.hub.local_url else f", listening on {gateway.hub.local_url}"
        print(f"hub at {gateway.hub.url}{where}", flush=True)
        print(f"gateway {config.name} is up, its node at {gateway.socket}", flush=True)
        if gateway.admin is not None:
            print(f"dashboard at {gateway.admin.url}", flush=True)
        await stop.wait()
    finally:
        await gateway.stop()
        if spans is not None:
            await asyncio.to_thread(spans.close)
        if log is not None:
            log.close()
