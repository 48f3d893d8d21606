"""The seven patterns as their author draws them, and what a bridge makes of three."""

import pytest

from perf.models.assumptions import ModelError
from perf.models.chains import ChainSetting, predict_chain
from perf.models.connectivity import Connectivity
from perf.models.patterns import INTERCONNECTIONS, ChainQueue, Reliability, compose, pattern
from perf.models.simulator import simulate
from perf.models.worlds import world_of

EVERY = [(number, transport) for number in range(1, 8) for transport in Reliability]


@pytest.mark.parametrize(("number", "transport"), EVERY)
def test_losses_are_where_the_transport_puts_them(number: int, transport: Reliability) -> None:
    one = pattern(number, transport)
    first = one.queues[0]
    assert first.party is not None, "the sender waits for its connection"
    if transport is Reliability.RELIABLE:
        assert not any(queue.lost_on_link for queue in one.queues)
        assert first.expires
    else:
        assert first.party in ("sender", "client", "publisher", "subscriber", "writer", "reader")
        assert any(queue.lost_on_link for queue in one.queues)
    assert len({queue.name for queue in one.queues}) == len(one.queues)


@pytest.mark.parametrize(("number", "transport"), EVERY)
def test_every_pattern_can_be_predicted_and_simulated(number: int, transport: Reliability) -> None:
    one = pattern(number, transport)
    parties = {queue.party: Connectivity(20, 5) for queue in one.queues if queue.party}
    setting = ChainSetting(2.0, 0.02, connectivity=parties, link=Connectivity(50, 5), lifetime=20)
    predicted = predict_chain(one, setting)
    run = simulate(world_of(one, setting), 20_000, 1)
    assert run.ledger.balanced
    assert 0 < predicted.success <= 1
    # Losses on links come in spells, and several queues lose to the same link at once: sums are not exact here.
    assert run.success() == pytest.approx(predicted.success, abs=0.25)


def test_pattern_4_in_full() -> None:
    assert pattern(4, Reliability.UNRELIABLE).queues == (
        ChainQueue("pub_app", "publisher", expires=True),
        ChainQueue("pub_mdw", lost_on_link=True),
        ChainQueue("broker_in", expires=True),
        ChainQueue("broker_out", "broker", lost_on_link=True, expires=True),
        ChainQueue("sub_mdw", lost_on_link=True),
        ChainQueue("sub_app"),
    )
    with pytest.raises(ModelError, match="there is no pattern 8"):
        pattern(8, Reliability.RELIABLE)


def test_a_vehicle_over_a_lossy_bus_to_a_service() -> None:
    """MQTT, CoAP that does not confirm, REST: reliable 4, unreliable 1, reliable 1."""
    chain = compose(
        pattern(4, Reliability.RELIABLE), pattern(1, Reliability.UNRELIABLE), pattern(1, Reliability.RELIABLE)
    )
    assert [queue.name for queue in chain.queues] == [
        "pub_app.1", "pub_mdw.1", "broker_in.1", "broker_out.1", "sub_mdw.1",
        "bridge1", "sender_mdw.2", "receiver_mdw.2",
        "bridge2", "sender_mdw.3", "receiver_mdw.3", "receiver_app.3",
    ]  # fmt: skip
    by_name = {queue.name: queue for queue in chain.queues}
    assert by_name["bridge1"].party is None, "the bus is unreliable: the bridge serves always"
    assert by_name["bridge2"].party == "overall.3", "it waits for the session with the service"
    assert by_name["sender_mdw.2"].lost_on_link
    assert not by_name["sender_mdw.3"].lost_on_link


@pytest.mark.parametrize("numbers", INTERCONNECTIONS.values(), ids=list(INTERCONNECTIONS))
def test_interconnections_have_two_bridges_each_way(numbers: tuple[int, int, int]) -> None:
    chain = compose(*(pattern(number, Reliability.RELIABLE) for number in numbers))
    assert [queue.name for queue in chain.request if "bridge" in queue.name] == ["bridge1", "bridge2"]
    back = [queue.name for queue in chain.response if "bridge" in queue.name]
    assert back == (["bridge2_back", "bridge1_back"] if chain.response else [])
    assert len({queue.name for queue in chain.queues}) == len(chain.queues)
    assert simulate(world_of(chain, ChainSetting(1.0, 0.01)), 500, 1).ledger.delivered == 500


def test_one_way_and_two_way_do_not_join() -> None:
    with pytest.raises(ModelError, match="one has a response, one has not"):
        compose(pattern(1, Reliability.RELIABLE), pattern(2, Reliability.RELIABLE))
    with pytest.raises(ModelError, match="there is none"):
        compose()


def test_past_saturation_a_chain_names_the_queue_and_gives_no_mean() -> None:
    setting = ChainSetting(50.0, 0.01, {"broker_in": 0.03})
    predicted = predict_chain(pattern(4, Reliability.RELIABLE), setting)
    assert predicted.mean is None
    assert predicted.first_to_saturate.queue.name == "broker_in"
    assert any("broker_in is saturated" in warning for warning in predicted.warnings)
