"""`psph backup`: copy the stores of a gateway, hub or node while it runs."""

import argparse
from pathlib import Path

from gateway.cli.errors import CommandError
from gateway.cli.roots import add_arguments, roots_named
from gateway.operations.backup import BackupError, back_up, verify

EXAMPLES = """
examples:
  psph backup -c gateway.toml /srv/backups/2026-01-31
  psph backup --data var/hub /srv/backups/hub-2026-01-31       of `psph hub` or `psph node`
  psph backup --verify /srv/backups/2026-01-31                  is it whole, and can this version use it?

All stores are copied as they were at one moment, checked, and only then is the directory there. It is readable by its
owner alone: the secrets of subscriptions are in it. Configuration, keys and tokens are not; keep those yourself.
`psph restore` is the way back.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Copy everything that a gateway, hub or node must not forget, while it runs."
    parser.epilog = EXAMPLES
    which = add_arguments(parser)
    which.add_argument("--verify", type=Path, metavar="BACKUP", help="only check a backup that was made")
    parser.add_argument(
        "target", type=Path, nargs="?", metavar="TARGET", help="the directory to make; never overwritten"
    )


def run(args: argparse.Namespace) -> int:
    try:
        if args.verify is not None:
            if args.target is not None:
                raise CommandError("--verify takes the backup alone: leave TARGET out")
            manifest = verify(args.verify)
            made = f"made {manifest.made_at} by psph {manifest.software}"
            print(f"{args.verify}: whole; {len(manifest.files)} files, {made}")
            return 0
        if args.target is None:
            raise CommandError("TARGET is missing: the directory to make")
        manifest = back_up(roots_named(args), args.target, progress=lambda line: print(f"  {line}", flush=True))
    except BackupError as error:
        raise CommandError(str(error)) from None
    print(f"{args.target}: {len(manifest.files)} files, checked")
    return 0
