"""The tables of the wire format's page say what the code does; and the codec does not bring in scapy."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from psirp_stack.wire.codec import HEADER_CLASSES, Header
from psirp_stack.wire.numbers import HEADER_BYTES

PAGE = Path(__file__).parents[3] / "docs" / "wire-format.md"


@pytest.mark.parametrize("header", dict.fromkeys(HEADER_CLASSES.values()))
def test_field_tables(header: type[Header]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    section = re.split(r"^### ", text.split(f"### {header.NAME.capitalize()}, 0x")[1], flags=re.MULTILINE)[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\w+) \|", section, flags=re.MULTILINE)
    fields = [(0, 1, "type"), (1, 1, "next"), *((field.offset, field.size, field.name) for field in header.LAYOUT)]
    assert [(int(offset), int(size), name) for offset, size, name in rows] == fields


def test_type_table() -> None:
    rows = re.findall(r"^\| 0x(\w\w) \|[^|]*\| (\d+) \|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert {int(number, 16): int(size) for number, size in rows} == HEADER_BYTES


def test_the_running_stack_does_not_import_scapy() -> None:
    code = "import sys, psirp_stack.wire.codec; sys.exit(any(name.split('.')[0] == 'scapy' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
