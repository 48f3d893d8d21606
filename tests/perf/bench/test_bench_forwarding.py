"""The forwarding benchmark measures what it says: frames really pass, rows and bars have their shape."""

import argparse
import json
import random

import pytest

from gateway.cli.main import main
from perf.bench.forwarding import (
    ARRIVAL,
    BENCHMARK,
    CARRIERS,
    DEPARTURE,
    IN_PROCESS,
    UDP,
    VETH,
    bars_of,
    compare,
    draw_table,
    draw_traffic,
    empty_row,
    sealed_over,
)
from psirp_stack.forwarder import Forwarder
from psirp_stack.wire.numbers import OFFER_BYTES, SEALED_OVERHEAD


@pytest.mark.parametrize("carrier", [IN_PROCESS, UDP])
def test_every_frame_passes_the_node_in_every_loop(carrier: str) -> None:
    source = random.Random(5)
    table = draw_table(source, 16)
    with CARRIERS[carrier]() as bench, CARRIERS[carrier]() as other:
        sealed = sealed_over(other)
        offers = other.sink.counters.received
        measured = compare(bench, sealed, table, draw_traffic(source, table, 20, 100), rounds=2, frames=130)
        assert bench.sink.counters.received == 3 * 40 + 6 * 130
        assert other.sink.counters.received == offers + 40 + 2 * 130
        assert other.sink.counters.received_bytes == offers * OFFER_BYTES + (40 + 2 * 130) * (100 + SEALED_OVERHEAD)
    assert measured.bare > 0
    assert measured.of_bare > 0
    assert measured.of_batched > 0
    assert measured.of_unsealed > 0


def test_traffic_leaves_by_one_link_and_fits_its_size() -> None:
    source = random.Random(5)
    table = draw_table(source, 64)
    forwarder = Forwarder(table)
    traffic = draw_traffic(source, table, 100, 1400)
    assert len({frame[:42] for frame in traffic}) == 100
    for frame in traffic:
        decision = forwarder.decide(frame, ARRIVAL, 0.0)
        assert (decision.out, decision.deliver, len(frame)) == ((DEPARTURE,), False, 1400)
    assert forwarder.remembered_loops == 0


def test_bars_take_the_worst_row_and_leave_out_what_was_not_measured() -> None:
    rows = [empty_row(carrier, 4, 100) for carrier in CARRIERS]
    rows += [empty_row(UDP, 4, size) | {"of bare": ratio} for size, ratio in ((100, 0.9), (1400, 0.6))]
    bars = bars_of(rows)
    assert [(bar.value, bar.holds) for bar in bars[:-1]] == [(0.6, False)]
    sealed = bars_of([*rows, empty_row(VETH, 4, 100) | {"of unsealed": 0.4}])[-2]
    assert (sealed.value, sealed.holds) == (0.4, False)
    assert not bars[-1].holds, "a reference that was not measured does not hold"


def test_a_number_below_one_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "forwarding", "--flows", "0"])
    assert ended.value.code == 2
    assert "expected at least 1" in capsys.readouterr().err


def test_the_json_document_carries_the_ratios(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("perf.bench.forwarding.LINK_COUNTS", (4,))
    monkeypatch.setattr("perf.bench.forwarding.missing", lambda carrier: "not here" if carrier == "veth" else None)
    assert main(["bench", "forwarding", "--json", "--rounds", "1", "--frames", "64", "--flows", "4"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["link"] for row in document["results"] if row["of bare"] is not None} == {IN_PROCESS, UDP}
    assert any("udp" in bar["name"] for bar in document["bars"])


def test_options_have_defaults() -> None:
    parser = argparse.ArgumentParser()
    BENCHMARK.configure(parser)
    assert parser.parse_args([]).flows == 256
