"""`psph restore`: bring a backup back where nothing is."""

import argparse
from pathlib import Path

from gateway.cli.errors import CommandError
from gateway.cli.roots import add_arguments, roots_named
from gateway.operations.backup import BackupError, restore

EXAMPLES = """
examples:
  psph restore -c gateway.toml /srv/backups/2026-01-31
  psph restore --data var/hub /srv/backups/hub-2026-01-31

The place must be empty and nothing may run there: stop the gateway, move its store away, restore, start. Checksums and
stores are checked before anything is written. What happened after the backup is not known any more: publications of
that time may be delivered again, and a subscription that was ended in that time is back until its lease ends.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Bring a backup of `psph backup` back. Nothing that is there is overwritten."
    parser.epilog = EXAMPLES
    add_arguments(parser)
    parser.add_argument("backup", type=Path, metavar="BACKUP", help="what `psph backup` made")


def run(args: argparse.Namespace) -> int:
    try:
        manifest = restore(args.backup, roots_named(args))
    except BackupError as error:
        raise CommandError(str(error)) from None
    print(f"{len(manifest.files)} files of {manifest.made_at} are back")
    return 0
