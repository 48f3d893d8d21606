"""Every action of an operator, one JSON line each: append only, bounded, on disk before the action is done."""

import asyncio
import json
import os
import threading
from datetime import UTC, datetime
from pathlib import Path

from gateway.admin.access import Caller
from gateway.telemetry.plain import without_keys
from storage.private import open_private_file


class AuditError(Exception):
    """The audit log cannot be written: nothing is done that would not be in it."""


class AuditLog:
    """`path`, and `path.1` with what was before. Together they stay below `max_bytes`."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self.lines = 0

    async def note(self, caller: Caller, action: str, topic: str, callback: str | None, outcome: str) -> None:
        """Raises `AuditError`."""
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "who": caller.who,
            "role": caller.role.name.lower(),
            "address": caller.address,
            "action": action,
            "topic": topic,
            "callback": None if callback is None else without_keys(callback),
            "outcome": outcome,
        }
        try:
            await asyncio.to_thread(self._append, json.dumps(line, ensure_ascii=False).encode() + b"\n")
        except OSError as error:
            raise AuditError(f"the audit log cannot be written ({error.strerror})") from error

    def last(self, count: int) -> list[dict[str, object]]:
        """Newest first."""
        try:
            lines = self.path.read_bytes().splitlines()[-count:]
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in reversed(lines)]

    def _append(self, line: bytes) -> None:
        with self._lock:
            handle = open_private_file(self.path, os.O_WRONLY | os.O_APPEND)
            try:
                if os.fstat(handle).st_size + len(line) > self._max_bytes // 2:
                    self.path.replace(self.path.with_name(self.path.name + ".1"))
                    os.close(handle)
                    handle = open_private_file(self.path, os.O_WRONLY | os.O_APPEND)
                os.write(handle, line)
                os.fsync(handle)
                self.lines += 1
            finally:
                os.close(handle)
