"""One Spark session for every test of this folder, and one analysis of the records made by hand."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from perf.java import NoJavaError
from perf.pipeline.analysis import Analysis, analyse
from perf.pipeline.session import open_session
from perf.traces.formats import Format
from perf.traces.run import TRACES
from tests.perf.spark.hand_made import run_one, run_two, write_run

# Compiling queries takes far longer than running them on a few rows; the cluster's test runs with compiled ones.
SMALL = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    # Less than the raw rows of the larger tests: a job that brought them to the driver would fail.
    "spark.driver.maxResultSize": "1m",
}


@pytest.fixture(scope="session")
def session() -> Iterator[SparkSession]:
    try:
        spark = open_session("local[2]", "1g", SMALL)
    except NoJavaError as error:
        pytest.skip(str(error))
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def analysis(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    folder = tmp_path_factory.mktemp("runs")
    records = run_one()
    one = write_run(folder / "one", "one", [records[1::2], records[0::2]], Format.PARQUET)
    (one / TRACES / "trace-000009.parquet").write_bytes(b"PAR1 nothing PAR1")
    two = write_run(folder / "two", "two", [run_two()], Format.JSON_LINES)
    with (two / TRACES / "trace-000000.jsonl").open("a") as stream:
        stream.write('{"run": "two", "publication": "q9", "step": "teleported", "schema": 3}\n{"run": "two", "publ')
    return analyse(session, [one, two], folder / "work")
