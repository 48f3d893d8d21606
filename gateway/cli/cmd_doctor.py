"""`psph doctor`: what keeps a gateway from working, and how to fix it."""

import argparse
import asyncio
import json
from dataclasses import asdict
from pathlib import Path

from gateway.operations.checks_network import PATIENCE
from gateway.operations.doctor import examine
from gateway.operations.findings import Finding, FindingLevel

EXIT_BAD = 1
EXAMPLES = """
examples:
  psph doctor -c gateway.toml
  psph doctor -c gateway.toml --thorough       every page and index of the stores, which takes a while
  psph doctor -c gateway.toml --json | jq '.[] | select(.verdict == "bad")'

It looks at the configuration, ports (the admin port's too, and whether two are the same), certificates and keys,
rights, free space, names, the clock, the stores, and whether a rendezvous can be reached; each thing that is not well
comes with what to do. The gateway may run or not; nothing is changed. If it does not run, its node is started for a
moment with an empty store. Exit code 1 when something is bad.
"""
MARKS = {
    FindingLevel.GOOD: "ok      ",
    FindingLevel.DOUBTFUL: "doubtful",
    FindingLevel.BAD: "BAD     ",
    FindingLevel.UNKNOWN: "skipped ",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Look for what keeps a gateway from working, and say how to fix it."
    parser.epilog = EXAMPLES
    parser.add_argument("-c", "--config", type=Path, required=True, metavar="FILE", help="the gateway's configuration")
    parser.add_argument("--thorough", action="store_true", help="check the stores in full")
    parser.add_argument("--no-names", action="store_true", help="ask no name server")
    parser.add_argument(
        "--patience",
        type=float,
        default=PATIENCE,
        metavar="S",
        help="wait so long for a rendezvous (default %(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON array")


def run(args: argparse.Namespace) -> int:
    findings = asyncio.run(
        examine(args.config, thorough=args.thorough, names=not args.no_names, patience=args.patience)
    )
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            print(_line(finding))
    wrong = sum(finding.verdict is FindingLevel.BAD for finding in findings)
    if not args.json:
        print(f"{wrong} things are bad" if wrong != 1 else "1 thing is bad")
    return EXIT_BAD if wrong else 0


def _line(finding: Finding) -> str:
    line = f"{MARKS[finding.verdict]}  {finding.check:<13}  {finding.text}"
    return line if not finding.fix else f"{line}\n{'':25}-> {finding.fix}"
