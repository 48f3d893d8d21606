"""The two file formats: Parquet (needs pyarrow, of the `analytics` extra) and JSON lines (always there).

A file is written under a hidden name and renamed when it is whole, so a reader never sees half a file.
"""

from array import array
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Final, Protocol

import msgspec

from perf.traces.blocks import Block, Coded, Constant, Values
from perf.traces.schema import COLUMNS, SCHEMA_VERSION, Column, ColumnType

PART: Final = ".part"
SCHEMA_KEY: Final = b"psph.schema"
_TIMES: Final = ("monotonic_ns", "wall_ns", "queued_ns", "started_ns")
_DISTINCT: Final = ("delivery", *_TIMES)


class Format(StrEnum):
    PARQUET = "parquet"
    JSON_LINES = "jsonl"


class TraceFileWriter(Protocol):
    """One file that is being written."""

    def write(self, block: Block) -> None: ...

    def close(self) -> None: ...


def have_parquet() -> bool:
    try:
        import pyarrow  # type: ignore[import-untyped] # noqa: F401
    except ImportError:
        return False
    return True


def open_file(path: Path, form: Format) -> TraceFileWriter:
    return ParquetFile(path) if form is Format.PARQUET else JsonLinesFile(path)


class JsonLinesFile:
    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("wb")
        self._encoder = msgspec.json.Encoder()

    def write(self, block: Block) -> None:
        self._file.write(self._encoder.encode_lines(block.records()))

    def close(self) -> None:
        self._file.close()


def arrow_schema(columns: tuple[Column, ...] = COLUMNS, version: int = SCHEMA_VERSION) -> Any:
    """The columns as a `pyarrow.Schema`, with the version in its metadata."""
    import pyarrow as pa

    kinds = {ColumnType.TEXT: pa.string(), ColumnType.INTEGER: pa.int64(), ColumnType.REAL: pa.float64()}
    fields = [pa.field(column.name, kinds[column.kind], nullable=not column.required) for column in columns]
    return pa.schema(fields, metadata={SCHEMA_KEY: str(version).encode()})


class ParquetFile:
    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        self._schema = arrow_schema()
        self._writer = pq.ParquetWriter(
            path,
            self._schema,
            compression="zstd",
            # Times differ in every row: a dictionary of them would only cost time.
            use_dictionary=[column.name for column in COLUMNS if column.name not in _DISTINCT],
            column_encoding=dict.fromkeys(_TIMES, "DELTA_BINARY_PACKED"),
            write_statistics=["wall_ns"],
            # What a disk or a copy has changed must not become a figure.
            write_page_checksum=True,
        )

    def write(self, block: Block) -> None:
        import pyarrow as pa

        arrays = [_arrow(block.columns[field.name], field.type, block.rows) for field in self._schema]
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


def _arrow(values: Values, kind: Any, rows: int) -> Any:
    """Numbers and codes go over as they lie in memory; only what is left is converted value by value."""
    import pyarrow as pa

    match values:
        case Constant():
            return pa.repeat(pa.scalar(values.value, kind), rows)
        case Coded():
            return pa.array(values.words, kind).take(_numbers(values.codes))
        case array():
            return _numbers(values).cast(kind)
        case _:
            return pa.array(values, kind)


def _numbers(values: "array[int]") -> Any:
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])
