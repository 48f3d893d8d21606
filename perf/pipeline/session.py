"""The Spark session: embedded by default, any cluster with a master."""

from __future__ import annotations

import os
from typing import Final

from pyspark.sql import SparkSession

from perf.java import prepare_spark_environment

DEFAULT_MASTER: Final = "local[*]"
DRIVER_MEMORY: Final = "3g"
"""Of the heap; with what Spark keeps beside it, a process of about 4 GiB."""


def open_session(master: str = DEFAULT_MASTER, memory: str = DRIVER_MEMORY, *, quiet: bool = True) -> SparkSession:
    """Start Spark, or take the one that this process has. Times are compared in UTC, names of columns exactly."""
    prepare_spark_environment()
    os.environ.setdefault("PYSPARK_PYTHON", "python3")
    session = (
        SparkSession.builder.master(master)
        .appName("psph report")
        .config("spark.driver.memory", memory)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.caseSensitive", "true")
        .config("spark.sql.ansi.enabled", "true")
        # A file that breaks in the middle costs its rows, which are counted, not the whole report.
        .config("spark.sql.files.ignoreCorruptFiles", "true")
        .config("spark.sql.shuffle.partitions", "8")
        # A replayed micro-batch is told apart by its id; checkpoints of the live view are temporary.
        .config("spark.sql.streaming.metricsEnabled", "false")
        .config("spark.driver.host", "127.0.0.1" if master.startswith("local") else "localhost")
        .getOrCreate()
    )
    if quiet:
        session.sparkContext.setLogLevel("ERROR")
    return session
