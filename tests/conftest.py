"""Settings for all tests: hypothesis draws the same examples in every run, and a busy machine is no failure.

Tests on Spark share one session, so all files of their folder go to the same worker: only one Java runs at a time.
"""

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

settings.register_profile("psph", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("psph")

TOGETHER = "tests/perf/spark/"


class LoadFileOrFolder(LoadFileScheduling):
    """Like `--dist loadfile`, but one folder counts as one file."""

    def _split_scope(self, nodeid: str) -> str:
        return TOGETHER if nodeid.startswith(TOGETHER) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileOrFolder | None:
    return LoadFileOrFolder(config, log) if config.getoption("dist") == "loadfile" else None  # type: ignore[arg-type]
