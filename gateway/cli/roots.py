"""Which directories hold what must survive, as a configuration or a person says."""

import argparse
from pathlib import Path

from gateway.cli.errors import CommandError
from gateway.config import ConfigError, load
from gateway.gateway import GatewayConfig

DATA = "data"
NODE = "node"
"""A gateway's own node whose store is somewhere else."""


def add_arguments(parser: argparse.ArgumentParser) -> "argparse._MutuallyExclusiveGroup":
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("-c", "--config", type=Path, metavar="FILE", help="the configuration of a gateway")
    which.add_argument("--data", type=Path, metavar="DIR", help="the data directory of a hub, a node or a gateway")
    return which


def roots_of(config: GatewayConfig) -> dict[str, Path]:
    roots = {DATA: config.data}
    own = config.network.node
    if own is not None and own.data is not None:
        node = Path(own.data)
        if not node.absolute().is_relative_to(config.data.absolute()):
            roots[NODE] = node
    return roots


def roots_named(args: argparse.Namespace) -> dict[str, Path]:
    if args.data is not None:
        return {DATA: args.data}
    try:
        return roots_of(load(args.config))
    except ConfigError as error:
        raise CommandError(str(error)) from None
