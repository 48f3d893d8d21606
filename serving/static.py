"""A page's few files, read once: no path of a request is ever a path of the disk."""

from collections.abc import Mapping
from pathlib import Path

from aiohttp import web


def add_files(
    app: web.Application, folder: Path, files: Mapping[str, tuple[str, str]], headers: Mapping[str, str]
) -> None:
    """Serve each path of `files` (name and content type) from `folder`."""
    for path, (name, content_type) in files.items():
        app.router.add_get(path, _File((folder / name).read_bytes(), content_type, headers).serve)


class _File:
    def __init__(self, body: bytes, content_type: str, headers: Mapping[str, str]) -> None:
        self._body = body
        self._content_type = content_type
        self._headers = headers

    async def serve(self, _request: web.Request) -> web.StreamResponse:
        charset = None if self._content_type.startswith("image/") else "utf-8"
        return web.Response(body=self._body, content_type=self._content_type, charset=charset, headers=self._headers)
