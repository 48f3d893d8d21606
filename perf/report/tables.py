"""Tables as files: Parquet and CSV with the same columns."""

import csv
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, get_args, get_type_hints

from perf.pipeline.analysis import Analysis
from perf.pipeline.tables import (
    ClockRow,
    CorrelationRow,
    DepthRow,
    DifferenceRow,
    EndingRow,
    FileRow,
    HistogramRow,
    HoleRow,
    HomogeneityRow,
    LatencyRow,
    LoadRow,
    PartRow,
    PlaceRow,
    QualityRow,
    ReceiverRow,
    RunNodeRow,
    SaturationRow,
    SlowRow,
    StabilityRow,
    TimeRow,
    VariationRow,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TABLES: Final[dict[str, type]] = {
    "latency": LatencyRow,
    "crossing": DifferenceRow,
    "between_runs": DifferenceRow,
    "correlation": CorrelationRow,
    "endings": EndingRow,
    "receivers": ReceiverRow,
    "coverage": HoleRow,
    "loads": LoadRow,
    "saturation": SaturationRow,
    "variation": VariationRow,
    "homogeneity": HomogeneityRow,
    "stability": StabilityRow,
    "parts": PartRow,
    "places": PlaceRow,
    "slowest": SlowRow,
    "queue_depth": DepthRow,
    "over_time": TimeRow,
    "histogram": HistogramRow,
    "clocks": ClockRow,
    "nodes": RunNodeRow,
    "files": FileRow,
    "quality": QualityRow,
}


def rows_of(analysis: Analysis, table: str) -> "Sequence[DataclassInstance]":
    rows: Sequence[DataclassInstance] = getattr(analysis, table)
    return rows


def write_tables(analysis: Analysis, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, kind in TABLES.items():
        write_table(folder, name, kind, rows_of(analysis, name))


def write_table(folder: Path, name: str, kind: type, rows: "Sequence[DataclassInstance]") -> None:
    columns = [field.name for field in fields(kind)]
    with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows([getattr(row, column) for column in columns] for row in rows)
    _write_parquet(folder / f"{name}.parquet", kind, rows)


def _write_parquet(path: Path, kind: type, rows: "Sequence[DataclassInstance]") -> None:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    arrow: dict[type, Any] = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    hints = get_type_hints(kind)
    schema = pa.schema([(field.name, arrow[_plain(hints[field.name])]) for field in fields(kind)])
    columns = [pa.array([getattr(row, name) for row in rows], schema.field(name).type) for name in schema.names]
    pq.write_table(pa.table(columns, schema=schema), path)


def _plain(hint: Any) -> type:
    """`float | None` is a float that may be missing."""
    kinds = [kind for kind in get_args(hint) if kind is not NoneType] or [hint]
    kind: type = kinds[0]
    return kind
