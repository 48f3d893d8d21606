"""`psph discover DOMAIN`: where the gateways of a domain are, in the order they would be tried."""

import argparse
import asyncio
import json
import random
import sys
from dataclasses import asdict, dataclass

from gateway.cli.errors import CommandError
from gateway.discovery import (
    SERVICE,
    Availability,
    DiscoveryError,
    Failover,
    FailoverConfig,
    Found,
    GatewayRecord,
    LookupFailedError,
    Resolver,
    ResolverConfig,
)
from serving.outbound.addresses import AddressPolicy

EXAMPLES = """
examples:
  psph discover example.org
  psph discover --json example.org
  psph discover --server 127.0.0.1 --port 5353 --allow-private example.org    ask a name server on this machine
  psph discover --seed 7 example.org                                          the same draw every time

Lower priorities come first; among equals, chance decides in proportion to the weights, so the order may differ from run
to run. Gateways without a usable address are shown last, because they would not be tried.
Exit code: 0 there is a gateway to try, 1 there is none or no name server answered, 2 the request was wrong.
"""


QUESTIONS_IN_TURN = 2
"""The service record, then all addresses at once."""


@dataclass(frozen=True, slots=True)
class GatewayDescription:
    """What `--json` prints; `position` is None for a gateway that would not be tried."""

    position: int | None
    target: str
    port: int
    priority: int
    weight: int
    addresses: tuple[str, ...]


def configure(parser: argparse.ArgumentParser) -> None:
    defaults = ResolverConfig()
    parser.description = (
        f"Look up the {SERVICE} SRV records of a domain and show its gateways in the order to try them."
    )
    parser.epilog = EXAMPLES
    parser.add_argument("domain", metavar="DOMAIN", help="a domain name such as example.org")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument(
        "--server", action="append", default=[], metavar="ADDRESS", help="ask this name server; may be repeated"
    )
    parser.add_argument("--port", type=int, default=defaults.port, metavar="P", help="its port (default: %(default)s)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=defaults.lifetime,
        metavar="S",
        help="seconds a question (default: %(default)g)",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="make the draw among equals repeatable")
    parser.add_argument(
        "--allow-private",
        action="store_true",
        help="count loopback and private addresses as usable (link-local: never)",
    )


def run(args: argparse.Namespace) -> int:
    if args.port != ResolverConfig().port and not args.server:
        raise CommandError("--port is the port of a --server: name one")
    try:
        config = ResolverConfig(
            nameservers=tuple(args.server),
            port=args.port,
            timeout=min(args.timeout, ResolverConfig().timeout),
            lifetime=args.timeout,
            deadline=args.timeout * QUESTIONS_IN_TURN,
        )
        found = asyncio.run(_look_up(args.domain, config, AddressPolicy(allow_private=args.allow_private)))
    except LookupFailedError as error:
        print(f"psph discover: {error}", file=sys.stderr)
        return 1
    except DiscoveryError as error:
        raise CommandError(str(error)) from error
    rng = random.Random(args.seed)  # noqa: S311 - shares load, guards nothing
    order = Failover(FailoverConfig(), rng).order(found.gateways, now=0.0)
    rows = [_described(position, gateway) for position, gateway in enumerate(order, start=1)]
    rows += [_described(None, gateway) for gateway in found.gateways if not gateway.addresses]
    print(_as_json(found, rows) if args.json else _as_text(found, rows))
    return 0 if found.availability is Availability.AVAILABLE else 1


async def _look_up(domain: str, config: ResolverConfig, policy: AddressPolicy) -> Found:
    return await Resolver(config, policy).lookup(domain)


def _described(position: int | None, gateway: GatewayRecord) -> GatewayDescription:
    return GatewayDescription(
        position, gateway.target, gateway.port, gateway.priority, gateway.weight, tuple(gateway.addresses)
    )


def _as_json(found: Found, rows: list[GatewayDescription]) -> str:
    return json.dumps(
        {
            "domain": found.domain,
            "availability": found.availability,
            "explanation": found.explanation,
            "ttl": found.ttl,
            "gateways": [asdict(row) for row in rows],
        }
    )


def _as_text(found: Found, rows: list[GatewayDescription]) -> str:
    lines = [f"{found.domain}: {found.explanation}, to be asked again in {found.ttl:.0f} s"]
    if rows:
        head = ("try", "priority", "weight", "gateway", "addresses")
        cells = [
            (
                "-" if row.position is None else str(row.position),
                str(row.priority),
                str(row.weight),
                f"{row.target}:{row.port}",
                ", ".join(row.addresses) or "none that may be used",
            )
            for row in rows
        ]
        widths = [max(len(line[column]) for line in (head, *cells)) for column in range(len(head))]
        for line in (head, *cells):
            padded = (text.ljust(width) for text, width in zip(line, widths, strict=True))
            lines.append("  " + "  ".join(padded).rstrip())
    return "\n".join(lines)
