"""A short run of `psph attack`, and its judge. The long run is `psph attack`."""

import asyncio
import json
from dataclasses import replace

import dns.message
import dns.rdatatype
import pytest

from gateway.cli.errors import CommandError
from tests.documents.pages import commands_for
from trials.attack.corpus import FAMILIES, all_attacks, attack_named
from trials.attack.driver import AttackResult, AttackTimes, FeltWay, run_attack
from trials.attack.innocent import Channel, FeltPhase
from trials.attack.name_server import NamesByRule
from trials.attack.namespaces import NoNamespacesError, why_not
from trials.attack.places import FEED, INSIDE, PUBLISHER, STRANGER, stranger_address, stranger_name, turning_name
from trials.attack.world import OPEN
from trials.cli.cmd_attack import chosen

SHORT = AttackTimes(quiet=1.5, attack=4.0)
needs_namespaces = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


async def result_of(name: str, *options: str, times: AttackTimes = SHORT) -> AttackResult:
    attack = attack_named(name)
    try:
        return await run_attack(replace(attack, options=options), times, lambda steps: None)
    except NoNamespacesError as error:
        pytest.skip(f"this machine does not allow network namespaces: {error}")


@needs_namespaces
async def test_an_innocent_user_does_not_feel_callbacks_that_never_answer() -> None:
    result = await result_of("tar-pit")
    assert result.failures == []
    assert result.counts["deliveries held"] > 0
    assert result.felt["feed"].published >= 10
    assert 0 < result.felt["feed"].attack_p99 < 1.0


@needs_namespaces
async def test_nothing_inside_is_reached_by_any_spelling() -> None:
    result = await result_of("inward-spellings")
    assert result.failures == []
    assert result.counts["redirected inwards"] > 0


@needs_namespaces
async def test_a_hub_without_its_guard_is_caught_by_the_same_attack() -> None:
    result = await result_of("inward-spellings", "--allow-private")
    assert any("the inside was reached" in failure for failure in result.failures), result.failures


@needs_namespaces
async def test_nothing_that_a_stranger_says_on_the_wire_is_believed() -> None:
    (command,) = commands_for(
        "tests/trials/test_attack.py::test_nothing_that_a_stranger_says_on_the_wire_is_believed",
        "docs/security.md",
    )
    assert command[:-1] == ["psph", "attack", "--quick", "--only"]
    result = await result_of(command[-1])
    assert result.failures == []
    assert result.counts["as a neighbour"] > 100
    assert result.counts["as the absent neighbour"] > 100
    assert set(result.felt) == {"feed", "psirp", "newcomer"}


@needs_namespaces
async def test_a_domain_without_a_secret_is_caught_by_the_same_attack() -> None:
    result = await result_of("forged-frames", OPEN, times=replace(SHORT, outstanding=0.5))
    assert any("did not arrive" in failure for failure in result.failures), result.failures
    assert result.forged, result.failures


@needs_namespaces
async def test_a_bad_member_neither_silences_nor_unsubscribes_others() -> None:
    result = await result_of("foreign-names")
    assert result.failures == []
    assert result.counts["requests in others' names"] > 100
    assert result.felt["newcomer"].published >= 10


@needs_namespaces
async def test_subscriptions_from_many_networks_stop_at_their_bounds_and_nobody_feels_them() -> None:
    result = await result_of("subscription-flood")
    assert result.failures == []
    assert result.counts["subscribe 202"] > 100
    assert result.counts["subscribe 429"] > 100
    assert result.rows is not None
    assert 100 < result.rows <= result.rows_bound
    assert result.counts["most of one network"] > 0


@needs_namespaces
async def test_a_clock_that_is_set_back_and_forward_holds_up_no_retry_and_ends_no_lease() -> None:
    result = await result_of("set-clock")
    assert result.failures == []
    assert result.counts["steps of the clock"] == result.counts["first tries refused"] == 10


@needs_namespaces
async def test_names_that_mislead_are_given_to_nobody_whoever_asks() -> None:
    result = await result_of("misleading-names")
    assert result.failures == []
    assert result.counts["misleading 400"] > 300
    assert result.counts["misleading 409"] > 2
    assert result.counts["any 201"] > 100


@needs_namespaces
async def test_tokens_are_guessed_slowly_and_operators_are_let_in_meanwhile() -> None:
    result = await result_of("guessed-tokens")
    assert result.failures == []
    assert result.counts["/api/who 429"] > 100
    assert result.counts["/topics 429"] > 100


GOOD = AttackResult(
    "one", "hub", {"feed": FeltWay(0.1, 0.9, 10, 0, 0)}, 5, 10, 5, 10, forged=0, counts={"requests": 1}
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"felt": {"feed": FeltWay(0.1, 1.1, 10, 0, 0)}}, "p99 1.10 s, allowed 1.00"),
        ({"felt": {"feed": FeltWay(0.8, 1.5, 10, 0, 0)}}, None),
        ({"felt": {"feed": FeltWay(0.8, 1.7, 10, 0, 0)}}, "p99 1.70 s, allowed 1.60"),
        ({"felt": {"feed": FeltWay(0.1, 0.1, 10, 1, 0)}}, "1 publications did not arrive"),
        ({"felt": {"feed": FeltWay(0.1, 0.1, 0, 0, 0)}}, "nothing was published"),
        ({"memory_growth": 11}, "memory grew"),
        ({"disk_growth": 11}, "disk grew"),
        ({"rows": 10, "rows_bound": 10}, None),
        ({"rows": 11, "rows_bound": 10}, "11 subscriptions and requests are stored"),
        ({"forged": 1}, "1 forged publications were believed"),
        ({"counts": {}}, "the attack did nothing"),
    ],
)
def test_every_bar_can_fail(change: dict[str, object], said: str | None) -> None:
    result = replace(GOOD, failures=[], **change)  # type: ignore[arg-type]
    result.judge([])
    assert result.passed is (said is None)
    if said is not None:
        assert len(result.failures) == 1
        assert said in result.failures[0]


def test_a_breach_fails_an_attack_that_nobody_felt() -> None:
    result = replace(GOOD, failures=[])
    result.judge(["somebody else was unsubscribed"])
    assert not result.passed


async def test_what_an_innocent_user_felt_is_told_by_phase() -> None:
    channel = Channel()
    channel.next()
    channel.came(1)
    channel.phases["attack"] = FeltPhase()
    channel.next()
    channel.next()
    assert channel.summary()["attack"]["lost"] == 2  # type: ignore[index]
    channel.came(3)  # the second state was replaced before anybody saw it
    channel.next()
    channel.lie("forged")
    told = json.loads(json.dumps(channel.summary()))
    assert (told["start"]["lost"], told["attack"]["lost"], told["forged"]) == (0, 1, 1)
    assert told["attack"]["published"] == 3
    assert await channel.until(3, 0.0)
    assert not await channel.until(4, 0.0)


def test_names_lead_where_their_rule_says() -> None:
    names = NamesByRule()
    assert names.address(stranger_name("a.b") + ".") == STRANGER
    assert names.address("Feed.Innocent.Example.") == PUBLISHER
    assert FEED.startswith("http://feed.innocent.example/")
    turning = turning_name("x", STRANGER, INSIDE[0]) + "."
    assert [names.address(turning) for _ in range(3)] == [STRANGER, INSIDE[0], INSIDE[0]]
    assert names.address("elsewhere.example.") is None
    query = dns.message.make_query(stranger_name("a"), dns.rdatatype.A)
    answer = names.answer(query.to_wire())
    assert answer is not None
    assert [record.to_text() for record in dns.message.from_wire(answer).answer[0]] == [STRANGER]
    assert names.answer(b"rubbish") is None


def test_strangers_have_many_networks() -> None:
    addresses = {stranger_address(number) for number in range(10_000)}
    assert len(addresses) == 10_000
    assert len({address.rpartition(".")[0] for address in addresses}) == 256


def test_attacks_have_names_of_their_own_and_are_chosen_by_them() -> None:
    names = [attack.name for attack in all_attacks()]
    assert len(set(names)) == len(names)
    assert not set(names) & set(FAMILIES)
    assert chosen(None) == all_attacks()
    assert [attack.name for attack in chosen(["tar-pit"])] == ["tar-pit"]
    assert chosen(["intake"]) == list(FAMILIES["intake"])
    with pytest.raises(CommandError, match="no such attack"):
        chosen(["nothing"])
    assert all(asyncio.iscoroutinefunction(attack.run) for attack in all_attacks())
