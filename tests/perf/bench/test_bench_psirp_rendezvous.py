"""The measuring of the rendezvous, small: it does what it says and leaves nothing behind."""

from pathlib import Path

from perf.bench.psirp_rendezvous import item, measure


def test_a_small_run_gives_a_row_for_each_size_and_removes_its_stores(tmp_path: Path) -> None:
    rows = measure((100, 1500), one_by_one=3, together=20, rounds=2, folder=tmp_path)
    assert [row["items"] for row in rows] == [100, 1500]
    assert all(isinstance(value, int | float) and value > 0 for row in rows for value in row.values())
    assert list(tmp_path.iterdir()) == []


def test_items_are_spread_and_always_the_same() -> None:
    assert len({item(number) for number in range(1000)}) == 1000
    assert item(5) == item(5)
