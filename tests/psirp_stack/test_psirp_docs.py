"""The guide for users says what is: every key of both configuration files, and the limits as they are."""

import re
from pathlib import Path

import msgspec

from psirp_stack.emulation import plan
from psirp_stack.node.applications import RequestTableConfig
from psirp_stack.node.config import CacheFile, DomainFile, KeysFile, LinkFile, NodeFile, RetentionFile, TimesFile, check
from psirp_stack.node.intents import IntentConfig

TEXT = (Path(__file__).parents[2] / "docs" / "psirp.md").read_text()


def test_every_key_of_a_node_is_explained() -> None:
    parts: dict[str, type[msgspec.Struct]] = {
        "": NodeFile,
        "domain": DomainFile,
        "keys": KeysFile,
        "times": TimesFile,
        "retention": RetentionFile,
        "cache": CacheFile,
    }
    for part, struct in parts.items():
        for field in msgspec.structs.fields(struct):
            if field.name not in (*parts, "links"):
                assert re.search(rf"`({part})?\.?{field.name}`", TEXT), f"{part}.{field.name}"
    for field in msgspec.structs.fields(LinkFile):
        assert f"`links[].{field.name}`" in TEXT


def test_the_example_network_can_be_planned() -> None:
    made = plan.plan({"generate": {"kind": "ring", "nodes": 8}, "every_link": {"delay": 0.002, "loss": 0.05}}, Path())
    assert f"{len(made.graph.names)} nodes and {made.graph.undirected_links} links are up" in TEXT


def test_defaults_are_as_written() -> None:
    request_table, wishes, node = RequestTableConfig(), IntentConfig(), check({"name": "a"})
    assert f"| {request_table.max_applications}, {request_table.max_items_per_application:,} |" in TEXT
    assert f"| {request_table.stuck_after:g} s | `DeskConfig.stuck_after`" in TEXT
    assert f"| {request_table.linger:g} s, {request_table.linger_unmatched:g} s when" in TEXT
    assert f"| {wishes.max_unanswered:,} |" in TEXT
    assert f"| {node.times.hello:g}, {node.times.lease:g} |" in TEXT
    assert f"| {node.retention.count}, {node.retention.bytes >> 20} MiB, {node.retention.age:g} |" in TEXT


def test_the_python_example_compiles() -> None:
    example = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert example is not None
    compile(example.group(1), "docs/psirp.md", "exec")
