"""The same report on a real cluster: a standalone master and two workers on loopback, each a process of its own."""

import csv
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

from perf.java import LOOPBACK, NoJavaError, prepare_spark_environment
from perf.traces.formats import Format
from tests.perf.spark.conftest import SMALL
from tests.perf.spark.hand_made import run_one, write_run

pytestmark = pytest.mark.timeout(900)
SPARK = Path(pyspark.__file__).parent
PORTS = ["--host", LOOPBACK, "--port", "0", "--webui-port", "0"]  # whichever are free


class Daemon:
    """One of Spark's own; ended by its process id."""

    def __init__(self, name: str, arguments: list[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [SPARK / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *arguments],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._said: list[str] = []
        # Nobody reads the log after that, and a full pipe would stop the daemon.
        self._drain = threading.Thread(target=self._process.stderr.read, daemon=True)  # type: ignore[union-attr]

    def wait_for(self, pattern: str) -> str:
        """The pattern's group, once the log has it. The test's own time limit bounds the wait."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(line)
            if match := re.search(pattern, line):
                self._drain.start()
                return match.group(1)
        pytest.fail("Spark's daemon ended:\n" + "".join(self._said[-20:]))

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(60)
        if self._drain.is_alive():
            self._drain.join(60)
        assert self._process.stderr is not None
        self._process.stderr.close()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    environment = dict(os.environ, SPARK_DAEMON_MEMORY="256m", SPARK_HOME=str(SPARK), SPARK_LOCAL_IP=LOOPBACK)
    try:
        prepare_spark_environment(environment)
    except NoJavaError as error:
        pytest.skip(str(error))
    with ExitStack() as stack:
        head = Daemon("master.Master", PORTS, environment)
        stack.callback(head.end)
        url = head.wait_for(r"(spark://127\.0\.0\.1:\d+)")
        for number in range(2):
            room = ["--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / f"worker-{number}")]
            worker = Daemon("worker.Worker", [*PORTS, *room, url], environment)
            stack.callback(worker.end)
            worker.wait_for(r"Successfully (registered) with master")
        yield url


def test_two_workers_give_the_figures_of_one_process(master: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "one", [run_one()[::2], run_one()[1::2]], Format.PARQUET)
    out = tmp_path / "out"
    # Nothing is compiled that would run for a moment only, as in the session that the other tests share.
    fast = SMALL | {"spark.executor.extraJavaOptions": SMALL["spark.driver.extraJavaOptions"]}
    (tmp_path / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in fast.items()))
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), SPARK_CONF_DIR=str(tmp_path))
    command = ["report", str(run), "--master", master, "--memory", "512m", "--out", str(out)]
    finished = subprocess.run(
        [sys.executable, "-c", "import sys; from gateway.cli.main import main; sys.exit(main())", *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    latency = {
        (row["stage"], row["domain"]): [
            float(row[name]) for name in ("count", "mean_ms", "p50_ms", "most_ms", "iqr_ms")
        ]
        for row in table(out, "latency")
        if row["by"] == "all"
    }
    # By hand, as in test_figures.
    assert latency["end_to_end", "psirp"] == pytest.approx([5, 10.2, 10, 15, 5])
    assert latency["end_to_end", "push"] == pytest.approx([5, 4.8, 5, 7, 2])
    assert latency["carry", "psirp"] == pytest.approx([5, 4.4, 4, 8, 4])
    (ending,) = table(out, "endings")
    assert [ending[name] for name in ("publications", "complete", "not_observed", "no_start", "no_end")] == list(
        "96111"
    )
    for number in range(2):
        assert list((tmp_path / f"worker-{number}").glob("app-*/*/stderr")), f"worker {number} had nothing to do"


def table(out: Path, name: str) -> list[dict[str, str]]:
    with (out / "tables" / f"{name}.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))
