"""`psph attack`: attack real processes in network namespaces, and measure what an innocent user feels of it."""

import argparse
import asyncio
import dataclasses
import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from gateway.cli.errors import CommandError
from perf.bench.family import progress_bar
from trials.attack.corpus import FAMILIES, all_attacks
from trials.attack.driver import QUICK, AttackResult, AttackTimes, run_attacks
from trials.attack.namespaces import NoNamespacesError, why_not
from trials.attack.stranger import Attack

COUNTS_SHOWN = 4


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Attack a hub, or two gateways and a node, each a process in a network namespace of its own. Addresses look\n"
        "public, so that the address guard is on as in production. Beside each attack somebody innocent publishes and\n"
        "subscribes. Ends with 1 when they felt it (p99 more than twice the quiet one and more than 1 s), when memory\n"
        "or disk grew beyond what the attack is allowed, or when forged content was believed. Needs root."
    )
    parser.epilog = """\
examples:
  psph attack --list                           what there is
  psph attack                                  all of it, about a minute each
  psph attack --quick --only tar-pit           one, short; --only may be repeated, and names families too
  psph attack --json > attacks.json"""
    parser.add_argument("--list", action="store_true", help="show the attacks and do nothing")
    parser.add_argument("--only", action="append", metavar="NAME", help="this attack or family; may be repeated")
    parser.add_argument(
        "--quick", action="store_true", help="shorter phases: less is seen, and p99 is the worst of a few"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    if args.list:
        show_corpus()
        return 0
    attacks = chosen(args.only)
    if (reason := why_not()) is not None:
        raise CommandError(reason)
    times = QUICK if args.quick else AttackTimes()
    try:
        with progress_bar("attacks", len(attacks)) as tick:
            results = asyncio.run(run_attacks(attacks, times, tick))
    except NoNamespacesError as error:
        raise CommandError(str(error)) from error
    if args.json:
        print(json.dumps(as_document(results), indent=2))
    else:
        show(results)
    return 0 if all(result.passed for result in results) else 1


def chosen(only: Sequence[str] | None) -> list[Attack]:
    if not only:
        return all_attacks()
    by_name = {attack.name: attack for attack in all_attacks()}
    found: list[Attack] = []
    for name in only:
        if name in FAMILIES:
            found += FAMILIES[name]
        elif name in by_name:
            found.append(by_name[name])
        else:
            raise CommandError(f"--only {name}: no such attack; psph attack --list shows them")
    return found


def as_document(results: Sequence[AttackResult]) -> dict[str, object]:
    return {
        "passed": all(result.passed for result in results),
        "attacks": [{**dataclasses.asdict(result), "passed": result.passed} for result in results],
    }


def show_corpus() -> None:
    table = Table()
    for column in ("family", "attack", "against", "what it does"):
        table.add_column(column)
    for family, attacks in FAMILIES.items():
        for attack in attacks:
            table.add_row(family, attack.name, attack.victim, attack.text)
    Console().print(table)


def show(results: Sequence[AttackResult]) -> None:
    table = Table()
    for column in ("attack", "against"):
        table.add_column(column)
    for column in ("quiet p99", "p99", "memory", "disk", "forged"):
        table.add_column(column, justify="right")
    for result in results:
        table.add_row(
            result.name if result.passed else f"[red]{result.name}[/red]",
            result.victim,
            "\n".join(f"{felt.quiet_p99:.2f} s" for felt in result.felt.values()),
            "\n".join(f"{felt.attack_p99:.2f} s" for felt in result.felt.values()),
            f"+{result.memory_growth / 2**20:.0f} MiB",
            f"+{result.disk_growth / 2**20:.1f} MiB",
            str(result.forged),
        )
    console = Console()
    console.print(table)
    for result in results:
        did = sorted(result.counts.items(), key=lambda item: -item[1])[:COUNTS_SHOWN]
        words = ", ".join(f"{what}: {count:,}" for what, count in did)
        console.print(f"{result.name}: {words}", markup=False, highlight=False, soft_wrap=True)
    for result in results:
        for failure in result.failures:
            console.print(f"FAILED {result.name}: {failure}", markup=False, highlight=False)
    failed = sum(not result.passed for result in results)
    console.print(
        f"{failed} of {len(results)} attacks were felt" if failed else "nobody innocent felt anything", highlight=False
    )
