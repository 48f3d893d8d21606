"""`psph gateway`: run a gateway."""

import argparse
import asyncio
import signal
import sys
from dataclasses import replace
import sys
from functools import partial
from pathlib import Path

import uvloop

from gateway.cli.errors import CommandError
from gateway.cli.traces import Observer, traced
from gateway.config import ConfigError, load
from gateway.discovery import DiscoveryError
from gateway.discovery.events import RegistrationFailed
from gateway.gateway import Gateway, GatewayConfig
from gateway.tracing import TracesConfig
from gateway.web.server import WebServer
from gateway.telemetry.logs import JsonLog
from gateway.gateway import Gateway
from gateway.operations.lifetime import serve
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
        with traced(config.traces, config.name, config.naming) as observer:
            uvloop.run(_serve(config, observer))
        uvloop.run(_serve(config, JsonLog(sys.stderr, config.name) if args.log == "json" else None))
        uvloop.run(serve(args.config, config, Gateway(config), partial(print, flush=True), _warn))
    except (
        ConfigError,
        DiscoveryError,
        NodeConfigError,
        GraphError,
        KeyFileError,
        NotAttachedError,
        StorageError,
        OSError,
    ) as error:
        raise CommandError(str(error)) from error
    return 0


def _listening(web: WebServer) -> str:
    return "" if web.url == web.local_url else f", listening on {web.local_url}"


async def _serve(config: GatewayConfig, observer: Observer | None) -> None:


async def _serve(config: GatewayConfig, log: JsonLog | None = None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    gateway = Gateway(config, observer=_complain if observer is None else _both(_complain, observer))
    gateway = Gateway(config, observer=None if log is None else log.observe)
    if log is not None:
        if gateway.telemetry is not None:
            log.way_of = gateway.telemetry.recorder.way_of
        gateway.log_dropped = lambda: log.dropped
        log.start()
    try:
        await gateway.start()
        where = "" if gateway.hub.url == gateway.hub.local_url else f", listening on {gateway.hub.local_url}"
        print(f"hub at {gateway.hub.url}{where}", flush=True)
        if gateway.web is not None:
            print(f"topics by GET and POST at {gateway.web.url}topics{_listening(gateway.web)}", flush=True)
            if gateway.web.chat is not None:
                print(f"chat page of {gateway.web.chat.domain} at {gateway.web.url}chat/", flush=True)
        print(f"gateway {config.name} is up, its node at {gateway.socket}", flush=True)
        if gateway.admin is not None:
            print(f"dashboard at {gateway.admin.url}", flush=True)
        await stop.wait()
    finally:
        await gateway.stop()


def _both(first: Observer, second: Observer) -> Observer:
    def observe(event: object) -> None:
        first(event)
        second(event)

    return observe


def _complain(event: object) -> None:
    """What an operator must know and would see nowhere else."""
    if isinstance(event, RegistrationFailed):
        again = "" if event.retry_in is None else f"; trying again in {event.retry_in:.0f} s"
        print(f"psph gateway: {event.name}: {event.reason}{again}", file=sys.stderr, flush=True)


        if log is not None:
            log.close()


def _warn(line: str) -> None:
    print(f"psph gateway: {line}", file=sys.stderr, flush=True)
