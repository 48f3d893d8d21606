"""The Spark session: embedded by default, any cluster with a master."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from perf.java import prepare_spark_environment

DEFAULT_MASTER: Final = "local[*]"
DRIVER_MEMORY: Final = "3g"
"""Of the heap; with what Spark keeps beside it, a process of about 4 GiB."""


def open_session(
    master: str = DEFAULT_MASTER, memory: str = DRIVER_MEMORY, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Start Spark, or take the one that this process has. `settings` of Spark override those made here.

    A cluster's workers must reach the driver: outside of one machine, set SPARK_LOCAL_IP to an address they see.
    """
    prepare_spark_environment()
    os.environ.setdefault("PYSPARK_PYTHON", "python3")
    builder = (
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
        .config("spark.hadoop.parquet.page.verify-checksum.enabled", "true")
        .config("spark.sql.shuffle.partitions", "8")
        .config("spark.executor.memory", memory)
    )
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
