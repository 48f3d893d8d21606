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


LONG = (
    "tests/test_examples.py",
    "tests/test_waiting.py::test_no_test_sleeps",
    "tests/exchange/test_exchange.py::test_a_reader_in_trouble_holds_up_itself_only",
    "tests/exchange/test_selecting_sessions.py::test_whatever_is_published_and_whenever_it_is_started_again",
    "tests/psirp_stack/control/test_courier.py::TestCourierMachine",
    "tests/psirp_stack/emulation/test_emulated_network.py",
    "tests/psirp_stack/emulation/test_experiment.py",
    "tests/psirp_stack/filters/test_filters.py::test_placed_tags_are_no_worse_than_random_ones_for_a_large_group",
    "tests/psirp_stack/filters/test_filters.py::test_thirty_two_users_of_a_carrier_network_get_nearly_nothing",
    "tests/psirp_stack/forwarding/test_forwarder_differential.py",
    "tests/psirp_stack/node/test_node_long_paths.py",
    "tests/psirp_stack/node/test_node_network.py::test_the_publishers_link_carries_what_the_plan_says_and_not_a_copy_each",
    "tests/psirp_stack/node/test_node_properties.py",
    "tests/psirp_stack/node/test_node_ring.py",
    "tests/psirp_stack/node/test_node_scale.py",
    "tests/psirp_stack/node/test_nothing_lost_after_acknowledgement.py",
    "tests/psirp_stack/rendezvous/test_rendezvous_crash.py",
    "tests/psirp_stack/transport/test_transport.py::test_sixteen_mebibytes_arrive_over_a_lossy_path",
    "tests/push_hub/delivery/test_subscriber_cache.py::test_a_page_is_what_stands_on_disk",
    "tests/push_hub/intake/test_intake_order.py::test_the_last_version_wins_and_none_is_published_twice_or_out_of_order",
    "tests/push_hub/server/test_subscription_bounds.py::test_the_sums_are_those_of_the_rows",
    "tests/push_hub/test_hub_clock.py",
)
"""What `--quick` leaves out: whole networks, long histories, programs. The rest answers before one has looked away."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out what takes long (LONG in tests/conftest.py)")


def place(nodeid: str) -> int:
    return next((number for number, prefix in enumerate(FIRST) if nodeid.startswith(prefix)), len(FIRST))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        long = {item for item in items if item.nodeid.startswith(LONG)}
        config.hook.pytest_deselected(items=list(long))
        items[:] = [item for item in items if item not in long]
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
