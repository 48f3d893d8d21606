"""`psph dissect`: show the PSIRP frames of a capture file."""

import argparse
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.cli.errors import CommandError

if TYPE_CHECKING:  # importing the packet tools takes scapy, which only this command needs
    from psirp_stack.tools.dissect import DissectedFrame

ROWS_A_TABLE = 500
"""A long capture is shown as several tables, so that memory does not grow with the file."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show the PSIRP frames (EtherType 0xACDC) of a pcap or pcapng file. Frames of other protocols are passed\n"
        "over; malformed ones are shown with the byte and the reason. Ends with 1 when the file breaks off."
    )
    parser.epilog = """\
examples:
  psph dissect trace.pcap
  psph dissect trace.pcap --json | jq 'select(.error)'
  wireshark -X lua_script:$(psph dissect --wireshark) trace.pcap

--json prints one object a line and frame: number, time (seconds), source, destination, length, headers (a list
in order; each has header, its name, and its fields, byte strings as hex), payload_bytes, payload (hex), message
(what the payload says, or null: about, name, fields, carries), error (or null)."""
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="the capture file")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    parser.add_argument("--count", type=int, metavar="N", help="show only the first N frames")
    parser.add_argument("--wireshark", action="store_true", help="print where the dissector for Wireshark is, and end")


def run(args: argparse.Namespace) -> int:
    if args.wireshark:
        print(files("psirp_stack.tools").joinpath("psirp.lua"))
        return 0
    if args.file is None:
        raise CommandError("which FILE? (a pcap or pcapng file, as `psph capture` writes it)")
    if args.count is not None and args.count < 0:
        raise CommandError(f"--count takes a number from 0 up, not {args.count}")
    try:
        from psirp_stack.tools.dissect import dissect
        from psirp_stack.tools.pcap import PcapError, read_pcap
    except ImportError as error:
        raise CommandError(f"{error}: install the packet tools (psph[tools])") from error
    try:
        file = args.file.open("rb")
    except OSError as error:
        raise CommandError(f"{args.file}: {error.strerror}") from error
    with file:
        frames = islice(dissect(read_pcap(file)), args.count)
        try:
            if args.json:
                show_json(frames)
            else:
                show_table(frames)
        except PcapError as error:
            print(f"psph dissect: {args.file}: {error}", file=sys.stderr)
            return 1
    return 0


def show_json(frames: Iterator["DissectedFrame"]) -> None:
    for frame in frames:
        print(json.dumps(as_document(frame)))


def as_document(frame: "DissectedFrame") -> dict[str, object]:
    return {
        "number": frame.number,
        "time": frame.time_ns / 1e9,
        "source": frame.source,
        "destination": frame.destination,
        "length": frame.length,
        "headers": [{"header": header.kind, **dict(header.fields)} for header in frame.headers],
        "payload_bytes": len(frame.payload),
        "payload": frame.payload.hex(),
        "message": None if frame.message is None else frame.message.as_document(),
        "error": frame.error,
    }


def show_table(frames: Iterator["DissectedFrame"]) -> None:
    console = Console()
    table = empty_table()
    shown = malformed = 0
    try:
        for frame in frames:
            table.add_row(*row(frame))
            shown += 1
            malformed += frame.error is not None
            if table.row_count == ROWS_A_TABLE:
                console.print(table)
                table = empty_table()
    finally:
        # Also when the file breaks off: what was read before is still worth seeing.
        if table.row_count:
            console.print(table)
        console.print(f"{shown} PSIRP frames, {malformed} malformed")


def empty_table() -> Table:
    table = Table()
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("time", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("headers", overflow="fold")
    return table


def row(frame: "DissectedFrame") -> tuple[str, str, str, Text]:
    lines = [] if frame.source is None else [Text(f"{frame.source} > {frame.destination}", style="dim")]
    lines += [Text(line) for line in frame.lines]
    if frame.error is not None:
        lines.append(Text(f"malformed: {frame.error}", style="red"))
    return str(frame.number), clock_time(frame.time_ns), str(frame.length), Text("\n").join(lines)


def clock_time(time_ns: int) -> str:
    try:
        return datetime.fromtimestamp(time_ns // 1_000_000_000, UTC).strftime(
            f"%H:%M:%S.{time_ns // 1000 % 1000000:06}"
        )
    except (OverflowError, ValueError, OSError):
        return "?"  # a corrupt file can hold any number
