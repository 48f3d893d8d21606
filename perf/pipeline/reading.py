"""Trace files as one DataFrame, whatever their format and version; what cannot be used is counted on the way.

Counts come from an observation, which rides on the pass that reads the rows anyway.
"""

from collections import defaultdict
from functools import reduce
from pathlib import Path
from typing import Final

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, DoubleType, LongType, StringType, StructField, StructType

from perf.traces.files import Inventory
from perf.traces.formats import Format
from perf.traces.schema import COLUMNS, SCHEMA_VERSION, Column, ColumnType, Domain, StepOutcome, TraceStep

BROKEN: Final = "_broken"
COLUMNAR: Final = "_columnar"
"""Whether a row came from a file that says how many it has."""
_KINDS: Final[dict[ColumnType, DataType]] = {
    ColumnType.TEXT: StringType(),
    ColumnType.INTEGER: LongType(),
    ColumnType.REAL: DoubleType(),
}
STEP_CODES: Final = {step: code for code, step in enumerate(TraceStep)}
LONGEST_NAME: Final = 2048
"""A longer publication, node or topic is no name: the record is not used."""


def spark_schema(columns: tuple[Column, ...] = COLUMNS) -> StructType:
    return StructType([StructField(column.name, _KINDS[column.kind]) for column in columns])


def columns_of(version: int) -> tuple[Column, ...]:
    return tuple(column for column in COLUMNS if column.since <= version)


def read_traces(session: SparkSession, inventory: Inventory) -> DataFrame:
    """All columns of the schema, and `_broken`, the text of a line that could not be parsed."""
    groups: dict[tuple[Format, int], list[Path]] = defaultdict(list)
    for file in inventory.readable:
        groups[file.form, min(file.version, SCHEMA_VERSION)].append(file.path)
    parts = [read_group(session, form, version, paths) for (form, version), paths in sorted(groups.items())]
    if not parts:
        nothing = session.createDataFrame([], spark_schema())
        return nothing.withColumns({BROKEN: F.lit(None).cast("string"), COLUMNAR: F.lit(False)})
    return reduce(DataFrame.unionByName, parts)


def read_group(session: SparkSession, form: Format, version: int, paths: list[Path]) -> DataFrame:
    columns = columns_of(version)
    names = [path.resolve().as_uri() for path in sorted(paths)]
    if form is Format.PARQUET:
        frame = session.read.schema(spark_schema(columns)).parquet(*names)
        frame = frame.withColumn(BROKEN, F.lit(None).cast("string"))
    else:
        schema = spark_schema(columns).add(BROKEN, StringType())
        frame = session.read.schema(schema).option("columnNameOfCorruptRecord", BROKEN).json(names)
    return complete(frame).withColumn(COLUMNAR, F.lit(form is Format.PARQUET))


def complete(frame: DataFrame) -> DataFrame:
    """Add the columns that an older file does not have."""
    for column in COLUMNS:
        if column.name not in frame.columns:
            frame = frame.withColumn(column.name, F.lit(None).cast(_KINDS[column.kind]))
    return frame


def rounded(load: SparkColumn) -> SparkColumn:
    """Three digits: tables have a row for every load, so there must not be a load for every row."""
    digits = F.floor(F.log10(load)) - 2
    above = F.pow(F.lit(10.0), digits)
    below = F.pow(F.lit(10.0), -digits)
    # Divided by a whole number, so that 0.3 stays 0.3 and does not become 0.30000000000000004.
    return F.when(digits > 0, F.round(load / above) * above).otherwise(F.round(load * below) / below)


def usable() -> SparkColumn:
    """Whether a row says what a record must say."""
    conditions = [F.col(column.name).isNotNull() for column in COLUMNS if column.required]
    conditions += [
        F.col(BROKEN).isNull(),
        F.col("step").isin([step.value for step in TraceStep]),
        F.col("domain").isin([domain.value for domain in Domain]),
        F.col("outcome").isin([outcome.value for outcome in StepOutcome]),
        F.coalesce(F.col("payload") >= 0, F.lit(True)),
        F.coalesce(F.col("hop").between(0, 10_000), F.lit(True)),
        F.coalesce((F.col("load") > 0) & (F.col("load") < 1e12), F.lit(True)),
        F.col("monotonic_ns").between(0, 1 << 61),
        F.col("wall_ns").between(0, 1 << 61),
        *(F.length(name) <= LONGEST_NAME for name in ("publication", "node", "clock")),
        *(F.coalesce(F.length(name) <= LONGEST_NAME, F.lit(True)) for name in ("resource", "peer")),
        F.coalesce(F.col("queue") >= 0, F.lit(True)),
        F.coalesce(F.col("queued_ns").between(0, F.col("started_ns")), F.lit(True)),
        F.coalesce(F.col("started_ns") <= F.col("monotonic_ns"), F.lit(True)),
    ]
    return F.coalesce(reduce(lambda one, other: one & other, conditions), F.lit(False))


def observed_usable(frame: DataFrame, runs: list[str], observation: Observation) -> DataFrame:
    """Only the usable rows, of the runs that were asked for; the observation gets the counts."""
    fine = usable() & F.col("run").isin(runs)
    marked = frame.withColumn("_fine", fine)
    counted = marked.observe(
        observation,
        F.count(F.lit(1)).alias("rows"),
        how_many(~F.col("_fine")).alias("unusable"),
        how_many(F.col("schema") < SCHEMA_VERSION).alias("older"),
        how_many(F.col(COLUMNAR)).alias("columnar"),
    )
    return counted.where("_fine").drop("_fine", BROKEN, COLUMNAR)


def how_many(condition: SparkColumn) -> SparkColumn:
    return F.coalesce(F.sum(F.when(condition, 1).otherwise(0)), F.lit(0))
