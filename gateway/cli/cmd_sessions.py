"""`psph sessions`: who is subscribed at a gateway, by every protocol; pause, resume, rewind and end them."""

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

from gateway.cli.admin_port import AdminPort, add_admin_arguments
from gateway.cli.errors import CommandError

EXAMPLES = """
examples:
  psph sessions
  psph sessions show chat alice@a.example
  psph sessions pause chat alice@a.example
  psph sessions resume chat alice@a.example
  psph sessions rewind chat alice@a.example bob@b.example --from 2026-01-31T12:00:00Z
  psph sessions end chat alice@a.example
  psph sessions --json --admin http://127.0.0.1:8090/

A session is a subscriber of one protocol: protocol and who name it. While it is paused nothing is handed to it, and
what it missed comes when it is resumed, as far as that is kept. --from takes current, all, the number or the origin of
a publication, or a time. Everything but looking asks for an operator's token where the port has tokens, and is in the
gateway's audit log. Exit code 1: there was nothing to do.
"""
ACTIONS = ("pause", "resume", "rewind", "end")
AGES = ((129_600, 86_400, "d"), (5_400, 3_600, "h"), (90, 60, "min"))


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Show the sessions of a gateway: subscribers of every protocol, how far each is; manage them."
    parser.epilog = EXAMPLES
    parser.add_argument("action", nargs="?", default="list", choices=["list", "show", *ACTIONS], help="what to do")
    parser.add_argument("protocol", nargs="?", help="of the session: websub, rest, chat, psirp, ...")
    parser.add_argument("who", nargs="?", help="whose session it is, as `psph sessions` shows it")
    parser.add_argument("name", nargs="?", help="one of its subscriptions, for rewind")
    parser.add_argument("--from", dest="start", metavar="PLACE", default="current", help="where rewind goes on from")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    add_admin_arguments(parser)


def run(args: argparse.Namespace) -> int:
    port = AdminPort(args)
    if args.action == "list":
        for row in _rows(port):
            print(json.dumps(row) if args.json else _line(row))
        return 0
    if args.protocol is None or args.who is None:
        raise CommandError(f"{args.action} what? psph sessions {args.action} PROTOCOL WHO (psph sessions lists them)")
    if args.action == "show":
        found = port.get("/api/session", protocol=args.protocol, who=args.who)
        print(json.dumps(found) if args.json else _as_text(found))
        return 0
    asked = {"protocol": args.protocol, "who": args.who}
    if args.action == "rewind":
        if args.name is None:
            raise CommandError("rewind which subscription? psph sessions show PROTOCOL WHO lists them")
        asked |= {"name": args.name, "start": args.start}
    done = port.post(f"/api/sessions/{args.action}", **asked)["done"]
    print("done" if done else "there was nothing to do")
    return 0 if done else 1


def _rows(port: AdminPort) -> Iterator[dict[str, Any]]:
    after = {"protocol": "", "who": ""}
    while page := port.get("/api/sessions", **after):
        yield from page
        after = {key: page[-1][key] for key in after}


def _line(row: dict[str, Any]) -> str:
    behind = f", behind on {row['behind']}" if row["behind"] else ""
    lasting = "" if row["durable"] else ", ends with its connection"
    count = row["subscriptions"]
    wants = f"{count} subscription{'' if count == 1 else 's'}"
    name = f"{row['protocol']:<8} {row['who'] or '-':<32}"
    return f"{name} {row['state']:<9} {wants}{behind}{lasting}, {_age(row['since'])}"


def _as_text(found: dict[str, Any]) -> str:
    lines = [_line(found["row"])]
    for one in found["interests"]:
        taken = "" if one["waiting"] is None else f"taken up to {one['cursor']}, {one['waiting']} waiting"
        until = "" if one["until"] is None else f", until {time.strftime('%F %T', time.localtime(one['until']))}"
        convert = f", as {one['convert']}" if one["convert"] else ""
        lines.append(f"  {one['name']:<40} {taken}{convert}{until}")
    if found["more"]:
        lines.append(f"  and {found['more']} more")
    return "\n".join(lines)


def _age(since: float) -> str:
    seconds = max(0.0, time.time() - since)
    for bound, size, unit in AGES:
        if seconds >= bound:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
