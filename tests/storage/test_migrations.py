"""Several owners keep their tables in one file, each with numbers of its own: nobody's steps move anybody else's."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import Database, Migration, MigrationError

OWNERS = ("gateway", "gateway.bootstrapping", "chat")


def step(owner: str, version: int) -> Migration:
    """Leaves a trace each time that it runs; the first also makes the table for it."""
    table = f'"steps of {owner}"'
    first = [f"CREATE TABLE {table} (version INTEGER)"] if version == 1 else []
    return Migration(owner, version, [*first, f"INSERT INTO {table} VALUES ({version})"])  # noqa: S608


def ran(database: Database, owner: str) -> list[int]:
    if not database.read("SELECT 1 FROM sqlite_master WHERE name = ?", (f"steps of {owner}",)):
        return []
    return [version for (version,) in database.read(f'SELECT version FROM "steps of {owner}" ORDER BY rowid')]  # noqa: S608


releases = st.lists(
    st.tuples(st.permutations(OWNERS), st.lists(st.integers(0, 3), min_size=len(OWNERS), max_size=len(OWNERS))),
    min_size=1,
    max_size=5,
)


@settings(max_examples=25)
@given(releases)
def test_each_owner_grows_by_itself_whatever_the_others_do(growth: list[tuple[list[str], list[int]]]) -> None:
    """Every release appends to some lists, puts the lists together in another order, and opens the same file."""
    newest = dict.fromkeys(OWNERS, 0)
    with tempfile.TemporaryDirectory() as folder:
        for order, more in growth:
            for owner, number in zip(OWNERS, more, strict=True):
                newest[owner] += number
            together = [step(owner, version) for owner in order for version in range(1, newest[owner] + 1)]
            with Database.open(Path(folder) / "file", together) as database:
                assert {owner: ran(database, owner) for owner in OWNERS} == {
                    owner: list(range(1, newest[owner] + 1)) for owner in OWNERS
                }


def test_who_knows_only_one_owner_opens_the_file_and_leaves_the_others_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    Database.open(path, [step("chat", 1), step("chat", 2), step("gateway", 1)]).close()
    with Database.open(path, [step("gateway", 1), step("gateway", 2)]) as database:
        assert ran(database, "chat") == ran(database, "gateway") == [1, 2]


def test_two_lists_that_claim_the_same_step_are_refused_before_anything_is_changed(tmp_path: Path) -> None:
    with pytest.raises(MigrationError, match="'chat' are not numbered"):
        Database.open(tmp_path / "file", [step("gateway", 1), step("chat", 1), step("chat", 1)])
    with Database.open(tmp_path / "file", []) as database:
        assert ran(database, "gateway") == []
