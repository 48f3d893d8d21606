"""Writes traces from a thread of its own: the data path only appends to a bounded lane.

    with TraceWriter(directory, run) as writer:
        lane = writer.lane(block_of_records)
        lane.put(record)

A full lane drops what comes and counts it; a directory that would grow above its bound loses its oldest files, and
counts that too. Both counts end up in `run.json`. `close` leaves a whole run, also after Ctrl-C.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Generic, TypeVar

from perf.traces.blocks import Block
from perf.traces.formats import PART, Format, TraceFileWriter, have_parquet, open_file
from perf.traces.run import TRACES, Run, TraceGap, WrittenFile, save_run
from storage.private import make_private_file

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WriterConfig:
    """Bounds. `lane_items` of a lane wait at most; a file is closed at `file_rows` or after `file_seconds`."""

    form: Format | None = None
    """None: Parquet if pyarrow is there, otherwise JSON lines."""
    lane_items: int = 200_000
    file_rows: int = 1_000_000
    file_seconds: float = 2.0
    """Short, so that who follows a run sees soon what happens; `psph traces compact` makes few files of many."""
    block_rows: int = 50_000
    max_bytes: int = 8 << 30
    idle_seconds: float = 0.25


STOP_SECONDS: Final = 60.0
FILES: Final = "trace"
MOST_GAPS: Final = 1000
"""Remembered times of drops; of more, the last one grows."""


class TraceChannel(Generic[T]):
    """What one producer puts in; `convert` turns many items into a block, on the writer's thread."""

    __slots__ = ("_append", "_bound", "_convert", "_items", "_rows_an_item", "dropped")

    def __init__(self, convert: Callable[[Sequence[T]], Block], bound: int, rows_an_item: int = 1) -> None:
        self._items: deque[T] = deque()
        self._append = self._items.append
        self._convert = convert
        self._bound = bound
        self._rows_an_item = rows_an_item
        self.dropped = 0

    def put(self, item: T) -> None:
        """Never blocks. Safe from any thread; the count of drops is exact when one thread puts."""
        if len(self._items) < self._bound:
            self._append(item)
        else:
            self.dropped += self._rows_an_item

    def __len__(self) -> int:
        return len(self._items)

    def take(self, limit: int) -> Block | None:
        items = self._items
        count = min(len(items), max(1, limit // self._rows_an_item))
        if not count:
            return None
        pop = items.popleft
        return self._convert([pop() for _ in range(count)])


class TraceWriter:
    def __init__(self, directory: Path, run: Run, config: WriterConfig | None = None) -> None:
        self._config = config or WriterConfig()
        self._form = self._config.form or (Format.PARQUET if have_parquet() else Format.JSON_LINES)
        self._directory = directory
        self._traces = directory / TRACES
        self.run = run
        self._channels: list[TraceChannel[object]] = []
        self._file: TraceFileWriter | None = None
        self._file_name = ""
        self._file_rows = 0
        self._file_until = 0.0
        self._number = 0
        self._files: list[tuple[WrittenFile, int]] = []
        self._bytes = 0
        self.written = 0
        self.removed = 0
        self._gaps: list[TraceGap] = []
        self._looked_ns = time.time_ns()
        self.failures = 0
        """Blocks that could not be converted or written: their rows are lost, the writer goes on."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="traces", daemon=True)
        save_run(directory, run)
        self._thread.start()

    def channel(
        self, convert: Callable[[Sequence[T]], Block], bound: int | None = None, rows_an_item: int = 1
    ) -> TraceChannel[T]:
        """A new lane. An item may stand for up to `rows_an_item` records; a dropped one counts as that many."""
        channel = TraceChannel(convert, bound or self._config.lane_items, rows_an_item)
        self._channels.append(channel)  # type: ignore[arg-type]  # a lane is only ever drained here
        return channel

    @property
    def dropped(self) -> int:
        return sum(channel.dropped for channel in self._channels)

    @property
    def waiting(self) -> int:
        """Items in the lanes, not yet taken by the thread."""
        return sum(map(len, self._channels))

    def close(self) -> Run:
        """Write what waits, close the file, say in `run.json` how it ended."""
        if self.run.ended_ns is None:
            self._stopping.set()
            self._thread.join(STOP_SECONDS)
            self.run = replace(
                self.run,
                ended_ns=time.time_ns(),
                written=self.written,
                dropped=self.dropped,
                removed=self.removed,
                gaps=tuple(self._gaps),
                files=tuple(file for file, _ in self._files),
            )
            save_run(self._directory, self.run)
        return self.run

    def __enter__(self) -> "TraceWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _work(self) -> None:
        config = self._config
        while True:
            stopping = self._stopping.is_set()
            busy = False
            for channel in list(self._channels):
                # A full block is worth writing at once; less waits for the next look, so that blocks stay large.
                busy = self._drain(channel) or busy
            self._note_drops()
            if self._file is not None and time.monotonic() >= self._file_until:
                self._finish_file()
            if not busy:
                if stopping:
                    break
                self._stopping.wait(config.idle_seconds)
        self._finish_file()

    def _note_drops(self) -> None:
        """Between two looks: those who drop must not be held up by noting when."""
        now = time.time_ns()
        rows = self.dropped - sum(gap.rows for gap in self._gaps)
        if rows > 0:
            last = self._gaps[-1] if self._gaps else None
            if last is not None and (last.end_ns == self._looked_ns or len(self._gaps) >= MOST_GAPS):
                self._gaps[-1] = TraceGap(last.begin_ns, now, last.rows + rows)
            else:
                self._gaps.append(TraceGap(self._looked_ns, now, rows))
        self._looked_ns = now

    def _drain(self, channel: TraceChannel[object]) -> bool:
        try:
            block = channel.take(self._config.block_rows)
            if block is None:
                return False
            if block.rows:
                self._write(block)
        except Exception:
            self.failures += 1  # a full disk or a hostile value must not end the tracing of everything else
            self._abandon_file()
        return True

    def _write(self, block: Block) -> None:
        if self._file is None:
            self._number += 1
            self._file_name = f"{FILES}-{self._number:06d}.{self._form}"
            part = self._traces / f".{self._file_name}{PART}"
            make_private_file(part)
            self._file = open_file(part, self._form)
            self._file_rows = 0
            self._file_until = time.monotonic() + self._config.file_seconds
        self._file.write(block)
        self._file_rows += block.rows
        if self._file_rows >= self._config.file_rows:
            self._finish_file()

    def _finish_file(self) -> None:
        if self._file is None:
            return
        part = self._traces / f".{self._file_name}{PART}"
        try:
            self._file.close()
            size = part.stat().st_size
            part.rename(self._traces / self._file_name)
        except Exception:
            self.failures += 1
            self._abandon_file()
            return
        self._file = None
        self.written += self._file_rows
        self._files.append((WrittenFile(self._file_name, self._file_rows), size))
        self._bytes += size
        while self._bytes > self._config.max_bytes and len(self._files) > 1:
            oldest, size = self._files.pop(0)
            (self._traces / oldest.name).unlink(missing_ok=True)
            self._bytes -= size
            self.removed += oldest.rows

    def _abandon_file(self) -> None:
        """The file is in an unknown state: what it held is not counted as written."""
        if self._file is not None:
            with contextlib.suppress(Exception):
                self._file.close()
            (self._traces / f".{self._file_name}{PART}").unlink(missing_ok=True)
            self._file = None
