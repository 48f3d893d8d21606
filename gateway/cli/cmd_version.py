"""`psph version`: which psph this is, and what it stands on."""

import argparse
import contextlib
import json
import platform
import re
import sqlite3
from importlib.metadata import PackageNotFoundError, requires, version

from gateway import __version__

EXAMPLES = """
examples:
  psph version                       psph 0.1.0
  psph version --json                also Python, SQLite, its formats, and the libraries with their versions
  psph version --json | jq -r .libraries.aiohttp
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Say which psph this is. With --json also what it stands on, for scripts and bug reports."
    parser.epilog = EXAMPLES
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    print(json.dumps(description(), indent=2) if args.json else f"psph {__version__}")
    return 0


def description() -> dict[str, object]:
    from gateway.protocols.listed import listed
    from gateway.protocols.psirp.envelope import ENVELOPE_VERSION
    from perf.traces.schema import SCHEMA_VERSION
    from psirp_stack.wire.numbers import PROTOCOL_VERSION

    return {
        "psph": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "sqlite": sqlite3.sqlite_version,
        "formats": {"frames": PROTOCOL_VERSION, "envelope": ENVELOPE_VERSION, "traces": SCHEMA_VERSION},
        "protocols": [one.label for one in listed()],
        "libraries": libraries(),
    }


def libraries() -> dict[str, str]:
    """What psph asks for itself, extras included, as far as it is installed."""
    found = {}
    try:
        asked = requires("psph") or []
    except PackageNotFoundError:  # it runs from a folder without having been installed
        asked = []
    for text in asked:
        name = re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0]
        with contextlib.suppress(PackageNotFoundError):
            found[name.lower()] = version(name)
    return dict(sorted(found.items()))
