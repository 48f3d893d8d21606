"""The budget of memory: its shares, and that pages of all stores together keep to theirs."""

import subprocess
import sys
from pathlib import Path

import pytest

from storage.memory import LEAST_MIB, MIB, MemoryBudget

SCRIPT = """
import sys
from pathlib import Path
from storage import Database, Migration
from storage.memory import MIB, MemoryBudget

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if int(sys.argv[2]):
    MemoryBudget(int(sys.argv[2]) * MIB).enforce_on_stores()
tables = [Migration("t", 1, ["CREATE TABLE t (n INTEGER PRIMARY KEY, b BLOB)"])]
began = resident()
stores = [Database.open(Path(sys.argv[1]) / f"{number}.db", tables) for number in range(3)]
for store in stores:
    for _ in range(12):
        store.write(lambda tx: tx.execute_many("INSERT INTO t (b) VALUES (zeroblob(?))", [(3000,)] * 512)).result()
    for first in range(0, 6144, 64):
        store.read("SELECT b FROM t WHERE n > ? LIMIT 64", (first,))
print((resident() - began) // MIB)
for store in stores:
    store.close()
"""


def grown(folder: Path, mib: int) -> int:
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), str(mib)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_pages_of_all_stores_share_one_bound(tmp_path: Path) -> None:
    """Some MiB are not pages; without the bound the six connections hold several times as much."""
    bound = MemoryBudget(LEAST_MIB * MIB).stores // MIB
    assert grown(tmp_path / "bounded", LEAST_MIB) < bound + 16 < grown(tmp_path / "unbounded", 0)


@pytest.mark.parametrize("mib", [LEAST_MIB, 96, 192, 4096])
def test_shares_are_parts_of_the_whole(mib: int) -> None:
    memory = MemoryBudget(mib * MIB)
    shares = (memory.stores, memory.arriving, memory.sent, memory.delivered, memory.newest)
    assert all(share >= MIB for share in shares)
    assert sum(shares) <= memory.total


def test_too_little_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 32 MiB"):
        MemoryBudget(LEAST_MIB * MIB - 1)
