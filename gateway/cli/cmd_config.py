"""`psph config`: check the configuration of a gateway, or print an example."""

import argparse
from pathlib import Path

from gateway.cli.errors import CommandError
from gateway.config import ConfigError, load
from gateway.config_example import EXAMPLE
from gateway.config_reference import reference
from gateway.words import counted

EXAMPLES = """
examples:
  psph config example > gateway.toml
  psph config check gateway.toml
  PSPH_HUB__LISTEN=0.0.0.0:80 psph config check gateway.toml     with what the environment changes

`check` looks at everything that can be looked at without starting: types, ranges, unknown keys, addresses, the files
that are named, and whether others can read the secrets. Its error names the key; exit code 2.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Check the configuration of a gateway, or print a complete example with comments."
    parser.epilog = EXAMPLES
    what = parser.add_subparsers(dest="what", required=True, metavar="check|example|reference")
    check = what.add_parser("check", help="say whether a configuration can be used")
    check.add_argument("file", type=Path, metavar="FILE")
    what.add_parser("example", help="print a complete configuration with comments")
    what.add_parser("reference", help="print a table of all keys, as in docs/configuration.md")


def run(args: argparse.Namespace) -> int:
    if args.what == "example":
        print(EXAMPLE, end="")
        return 0
    if args.what == "reference":
        print(reference(), end="")
        return 0
    try:
        config = load(args.file)
    except ConfigError as error:
        raise CommandError(str(error)) from None
    node = config.network.node
    network = f"a node {node.name!r} with {counted(len(node.links), 'link')}" if node else str(config.network.attach)
    print(f"{args.file}: can be used")
    print(f"  hub      {config.hub.host} port {config.hub.port}, known as {config.hub.public_url or 'that'}")
    print(f"  network  {network}, naming {config.naming.announcement}")
    print(f"  zones    {', '.join(config.zones) or 'none'}")
    print(f"  store    {config.data}")
    return 0
