"""Settings for all tests: hypothesis draws the same examples in every run, and a busy machine is no failure.

How the work is divided, so that the suite takes as long as its work and not as its longest file: what takes long begins
first; each page of the documentation is a piece of its own; tests on Spark share one session, so all files of their
folder are one piece, and only one Java runs at a time. Many tests wait for processes and sockets, so there are more
workers than cores.
"""

import os

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

settings.register_profile("psph", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("psph")

TOGETHER = "tests/perf/spark/"
EACH = "tests/documents/test_pages.py::test_the_commands_of_a_page_do_what_it_says["
FIRST = (TOGETHER, EACH, "tests/trials/", "tests/perf/", "tests/gateway/")
"""What has the longest tests, in this order; the rest fills the gaps."""


def place(nodeid: str) -> int:
    return next((number for number, prefix in enumerate(FIRST) if nodeid.startswith(prefix)), len(FIRST))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: place(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    cores = len(os.sched_getaffinity(0))
    return cores + (cores + 1) // 2


class LoadFileOrFolder(LoadFileScheduling):
    """Like `--dist loadfile`, but one folder counts as one file, and each page as one."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(EACH):
            return nodeid
        return TOGETHER if nodeid.startswith(TOGETHER) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileOrFolder | None:
    return LoadFileOrFolder(config, log) if config.getoption("dist") == "loadfile" else None  # type: ignore[arg-type]
