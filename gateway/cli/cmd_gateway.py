"""`psph gateway`: run a gateway."""

import argparse
import sys
from functools import partial
from pathlib import Path

import uvloop

from gateway.cli.errors import CommandError
from gateway.config import ConfigError, load
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
  PSPH_HUB__LISTEN=0.0.0.0:80 psph gateway -c gateway.toml
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


def run(args: argparse.Namespace) -> int:
    try:
        config = load(args.config)
        uvloop.run(serve(args.config, config, Gateway(config), partial(print, flush=True), _warn))
    except (
        ConfigError,
        NodeConfigError,
        GraphError,
        KeyFileError,
        NotAttachedError,
        StorageError,
        OSError,
    ) as error:
        raise CommandError(str(error)) from error
    return 0


def _warn(line: str) -> None:
    print(f"psph gateway: {line}", file=sys.stderr, flush=True)
