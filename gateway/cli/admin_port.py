"""Asking a gateway's admin port, for commands."""

import argparse
import json
import os
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from gateway.cli.errors import CommandError

DEFAULT = "http://127.0.0.1:8090/"
ADDRESS, TOKEN_FILE = "PSPH_ADMIN", "PSPH_ADMIN_TOKEN_FILE"
SECONDS = 30.0
MAX_REASON = 300


def add_admin_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--admin",
        metavar="URL",
        default=os.environ.get(ADDRESS, DEFAULT),
        help=f"the gateway's admin port ([admin] listen); {ADDRESS} in the environment, or {DEFAULT}",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        default=os.environ.get(TOKEN_FILE),
        help=f"holds a token for it, if it asks for one; {TOKEN_FILE} in the environment",
    )


class AdminPort:
    def __init__(self, args: argparse.Namespace) -> None:
        self._url = args.admin.rstrip("/")
        if urlsplit(self._url).scheme not in ("http", "https"):
            raise CommandError(f"--admin {args.admin}: expected the address of an admin port, like {DEFAULT}")
        self._headers = {}
        if args.token_file is not None:
            try:
                token = Path(args.token_file).read_text().strip()
            except OSError as error:
                raise CommandError(f"--token-file {args.token_file}: {error.strerror}") from None
            self._headers = {"Authorization": f"Bearer {token}"}

    def get(self, path: str, **query: str) -> Any:
        return self._ask(Request(f"{self._url}{path}?{urlencode(query)}", headers=self._headers))  # noqa: S310

    def post(self, path: str, **body: str) -> Any:
        headers = self._headers | {"Content-Type": "application/json"}
        return self._ask(Request(f"{self._url}{path}", json.dumps(body).encode(), headers))  # noqa: S310

    def _ask(self, request: Request) -> Any:
        try:
            with urlopen(request, timeout=SECONDS) as answer:  # noqa: S310 - http or https, see above
                return json.load(answer)
        except HTTPError as error:
            said = error.read(MAX_REASON).decode(errors="replace").strip()
            raise CommandError(f"the gateway says: {said or error.reason}") from None
        except (URLError, OSError, ValueError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise CommandError(
                f"no admin port at {self._url} ({reason}): is a gateway running with [admin] listen? see --admin"
            ) from None
