"""Many publications over a large, bad ring, one forwarder of which is killed and comes back."""

from pathlib import Path

import pytest

from psirp_stack.emulation.ring import run_ring


def test_publications_over_a_lossy_ring_arrive_each_once_and_in_order(tmp_path: Path) -> None:
    """`psph bench psirp --ring` does the same with 10,000."""
    report = run_ring(tmp_path, publications=1000)
    assert report.published == 1000
    assert report.wrong == ()
    assert report.delivered == 1000 * report.subscribers
    assert report.skipped == 0
    assert report.frames_lost > 1000
    assert report.killed
    assert report.returned


@pytest.mark.parametrize("publications", [0, 3])
def test_a_ring_needs_something_to_publish(tmp_path: Path, publications: int) -> None:
    with pytest.raises(ValueError, match="at least"):
        run_ring(tmp_path, publications=publications)
