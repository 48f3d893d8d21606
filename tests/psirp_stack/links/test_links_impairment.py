"""The impairment stage on a virtual clock: each harm alone, statistics by seed, bounds."""

from collections.abc import Sequence

import pytest

from psirp_stack.links.clock import VirtualClock
from psirp_stack.links.impairment import ImpairedLink, Impairment, impairment_from_text
from psirp_stack.links.in_process import pair

Arrivals = list[tuple[float, int]]


def run(
    how: Impairment, frames: int, *, seed: int = 1, gap: float = 0.001, size: int = 100
) -> tuple[ImpairedLink, Arrivals]:
    """Send numbered frames with a gap between them; when each arrived."""
    clock = VirtualClock()
    one, other = pair(scheduler=clock, mtu=size)
    link = ImpairedLink(one, how, clock, seed)
    arrivals: Arrivals = []

    def receive(batch: Sequence[bytes]) -> None:
        arrivals.extend((clock.now(), int.from_bytes(frame[:4], "big")) for frame in batch)

    other.on_receive(receive)
    for number in range(frames):
        clock.call_at(number * gap, lambda number=number: link.send(number.to_bytes(4, "big").ljust(size, b".")))
    clock.run()
    assert link.under_way == 0
    return link, arrivals


def numbers(arrivals: Arrivals) -> list[int]:
    return [number for _, number in arrivals]


def test_no_impairment_changes_nothing() -> None:
    _, arrivals = run(Impairment(), 100)
    assert numbers(arrivals) == list(range(100))
    assert [when for when, _ in arrivals] == pytest.approx([n * 0.001 for n in range(100)])


def test_delay_is_exact() -> None:
    _, arrivals = run(Impairment(delay=0.05), 10)
    assert [when for when, _ in arrivals] == pytest.approx([0.05 + n * 0.001 for n in range(10)])


def test_jitter_stays_in_its_bounds_and_keeps_the_order() -> None:
    _, arrivals = run(Impairment(delay=0.05, jitter=0.02), 2000, gap=0.03)
    delays = [when - number * 0.03 for when, number in arrivals]
    assert numbers(arrivals) == list(range(2000))
    assert 0.03 <= min(delays) < 0.032
    assert max(delays) > 0.068
    assert sum(delays) / len(delays) == pytest.approx(0.05, abs=0.002)


def test_loss_follows_its_rate_and_is_counted() -> None:
    link, arrivals = run(Impairment(loss=0.1), 10_000)
    assert link.impaired.lost == 10_000 - len(arrivals)
    assert 900 < link.impaired.lost < 1100  # more than three standard deviations either side
    assert run(Impairment(loss=1.0), 50)[1] == []


def test_duplication_follows_its_rate_and_is_counted() -> None:
    link, arrivals = run(Impairment(duplication=0.2), 10_000, gap=1.0)
    assert len(arrivals) == 10_000 + link.impaired.doubled
    assert 1870 < link.impaired.doubled < 2130
    assert set(numbers(arrivals)) == set(range(10_000))


def test_reordered_frames_overtake() -> None:
    link, arrivals = run(Impairment(delay=0.01, reorder=0.1), 5000)
    overtakers = [number for when, number in arrivals if when == pytest.approx(number * 0.001)]
    assert len(overtakers) == link.impaired.reordered
    assert 430 < link.impaired.reordered < 570
    assert numbers(arrivals) != sorted(numbers(arrivals))
    assert sorted(numbers(arrivals)) == list(range(5000))


def test_bandwidth_spaces_frames_by_their_size() -> None:
    _, arrivals = run(Impairment(bandwidth=8000), 5, gap=0.0, size=100)
    assert [when for when, _ in arrivals] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


def test_a_full_queue_drops_the_newest_and_counts() -> None:
    link, arrivals = run(Impairment(bandwidth=8000, queue_limit=3), 10, gap=0.0)
    assert numbers(arrivals) == [0, 1, 2]
    assert link.impaired.queue_full == 7


def test_the_same_seed_gives_the_same_history() -> None:
    how = Impairment(delay=0.02, jitter=0.01, loss=0.1, duplication=0.1, reorder=0.1)
    assert run(how, 1000, seed=7)[1] == run(how, 1000, seed=7)[1]
    assert run(how, 1000, seed=7)[1] != run(how, 1000, seed=8)[1]


def test_changing_one_harm_does_not_change_the_luck_of_another() -> None:
    lossy = set(numbers(run(Impairment(loss=0.1), 1000)[1]))
    also_doubled = set(numbers(run(Impairment(loss=0.1, duplication=0.3), 1000)[1]))
    assert lossy == also_doubled


def test_oversized_and_closed_are_refused() -> None:
    clock = VirtualClock()
    link = ImpairedLink(pair(mtu=10)[0], Impairment(), clock, 1)
    assert not link.send(bytes(11))
    link.close()
    assert not link.send(b"x")
    assert (link.counters.oversized, link.counters.after_close) == (1, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"loss": 1.5},
        {"duplication": -0.1},
        {"delay": -1.0},
        {"jitter": 1.0},
        {"queue_limit": 0},
        {"delay": float("nan")},
    ],
)
def test_impossible_impairments_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Impairment(**wrong)  # type: ignore[arg-type]


def test_impairments_are_read_from_text() -> None:
    assert impairment_from_text("loss=0.01,delay=0.02,queue_limit=5") == Impairment(
        loss=0.01, delay=0.02, queue_limit=5
    )
    for wrong in ("lost=1", "loss", "loss=much"):
        with pytest.raises(ValueError, match="impairment"):
            impairment_from_text(wrong)


def test_a_clock_that_never_rests_is_an_error() -> None:
    clock = VirtualClock()

    def again() -> None:
        clock.call_at(clock.now(), again)

    again()
    with pytest.raises(RuntimeError, match="without coming to rest"):
        clock.run(most=100)


def test_time_passes_to_the_end_of_a_run() -> None:
    clock = VirtualClock(5.0)
    clock.call_at(20.0, lambda: None)
    assert clock.run(until=10.0) == 0
    assert (clock.now(), clock.pending) == (10.0, 1)
