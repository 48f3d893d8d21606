"""A block of records as columns: what producers hand to the writer and the writer hands to a file format.

Most columns of a block are the same in every row (the run, the node, the schema) or one of a few values (the
publication, its topic). Such columns are not spelled out row by row: the interpreter lock is shared with the data
path, so whatever the writer's thread does in Python, the data path pays for.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from perf.traces.schema import COLUMNS, ColumnType, TraceRecord

Value = str | int | float | None


@dataclass(frozen=True, slots=True)
class Constant:
    """One value for every row."""

    value: Value

    def __getitem__(self, row: int) -> Value:
        return self.value


@dataclass(frozen=True, slots=True)
class Coded:
    """One of a few values: `words[codes[row]]`."""

    codes: "array[int]"
    words: Sequence[Value]

    def __getitem__(self, row: int) -> Value:
        return self.words[self.codes[row]]


Values = Sequence[Value] | Constant | Coded
"""An `array('q')` of numbers may stand for a text column, too."""


@dataclass(frozen=True, slots=True)
class Block:
    """`columns` has every column of the schema; lists and arrays are all `rows` long."""

    rows: int
    columns: Mapping[str, Values]

    def records(self) -> Iterator[dict[str, Value]]:
        """Row by row, without what is null: for formats that are not columnar."""
        for row in range(self.rows):
            record: dict[str, Value] = {}
            for column in COLUMNS:
                value = self.columns[column.name][row]
                if value is not None:
                    record[column.name] = str(value) if column.kind is ColumnType.TEXT else value
            yield record


def block_of_records(records: Sequence[TraceRecord]) -> Block:
    columns: Sequence[Sequence[Value]] = list(zip(*records, strict=True)) or [()] * len(COLUMNS)
    return Block(len(records), {column.name: values for column, values in zip(COLUMNS, columns, strict=True)})
