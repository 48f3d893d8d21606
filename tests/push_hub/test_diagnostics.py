"""Why does it get nothing? What the operator sees, and a subscriber who proves that it knows its secret."""

import hmac
import time

import pytest
from aiohttp import web

from push_hub.diagnostics import proof_of
from push_hub.intake import IntakeConfig
from tests.push_hub.harness import Subscriber, atom, until
from tests.push_hub.world import OPERATOR, World


def proof(world: World, secret: bytes = b"geheim", ago: int = 0) -> dict[str, str]:
    at = int(time.time()) - ago
    return {"Authorization": proof_of(secret, world.topic, world.subscriber.url(), at)}


async def about(world: World, status: int = 200, headers: dict[str, str] | None = None) -> dict[str, object]:
    where = "diagnostics/subscription"
    return await world.get(where, status, headers, topic=world.topic, callback=world.subscriber.url())  # type: ignore[no-any-return]


async def failed_delivery(world: World) -> int:
    """A subscription whose first delivery is answered 500."""
    await world.ask("subscribe", ("hub.secret", "geheim"))
    world.subscriber.status = 500
    await world.publish(atom(1))
    found = world.found()
    await until(lambda: world.hub.delivery.owed(found.id))
    return found.id


async def test_the_operator_and_who_knows_the_secret_see_the_same(world: World) -> None:
    await world.ask("subscribe", ("hub.secret", "geheim"))
    await world.publish(atom(1))
    number = world.found().id
    await until(lambda: world.hub.delivery.history(number))
    seen = [await about(world, headers=headers) for headers in (OPERATOR, proof(world))]
    assert seen[0] == seen[1]
    document = seen[0]
    assert document["state"] == "active"
    assert document["last_delivery"]
    assert document["lease_end"]
    assert document["last_failure"] is None
    assert document["owed"] == []
    assert document["history"][0]["what"] == "subscribed for 864000 seconds"  # type: ignore[index]
    assert "geheim" not in str(document)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("none", 401),
        ("other secret", 403),
        ("too old", 403),
        ("from the future", 403),
        ("for another callback", 403),
        ("not hexadecimal", 401),
        ("wrong token", 401),
        ("token in other letters", 401),
    ],
)
async def test_nobody_else_sees_anything(world: World, kind: str, status: int) -> None:
    await world.ask("subscribe", ("hub.secret", "geheim"))
    now = int(time.time())
    headers = {
        "none": {"X-Nothing": ""},
        "other secret": proof(world, b"guess"),
        "too old": proof(world, ago=1000),
        "from the future": proof(world, ago=-1000),
        "for another callback": {"Authorization": proof_of(b"geheim", world.topic, world.subscriber.url("/x"), now)},
        "not hexadecimal": {"Authorization": f"PSPH-HMAC time={now}, mac={'z' * 64}"},
        "wrong token": {"Authorization": "Bearer guess"},
        "token in other letters": {"Authorization": "Bearer \u00fcoperator"},
    }[kind]
    text = await about(world, status, headers)
    assert world.subscriber.url() not in text
    # Neither status nor text tells whether there is such a subscription.
    elsewhere = await world.get(
        "diagnostics/subscription", status, headers, topic=world.topic, callback="http://nobody.example/"
    )
    assert elsewhere == text


async def test_a_subscription_without_secret_cannot_be_proved(world: World) -> None:
    await world.ask("subscribe")
    for secret in (b"", b"\0" * 32):
        await about(world, 403, proof(world, secret))


async def test_comparisons_are_constant_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every proof and token goes through hmac.compare_digest once, also where there is nothing to compare with."""
    await world.ask("subscribe", ("hub.secret", "geheim"))
    compared: list[int] = []
    real = hmac.compare_digest

    def spy(one: str | bytes, other: str | bytes) -> bool:
        compared.append(1)
        return real(one, other)  # type: ignore[type-var]

    monkeypatch.setattr("push_hub.diagnostics.hmac.compare_digest", spy)
    for headers in (proof(world), proof(world, b"guess"), OPERATOR, {"Authorization": "Bearer guess"}):
        compared.clear()
        params = {"topic": world.topic, "callback": world.subscriber.url()}
        async with world.http.get(f"{world.hub.url}diagnostics/subscription", params=params, headers=headers):
            assert compared == [1]
    compared.clear()
    params = {"topic": world.topic, "callback": "http://nobody.example/"}
    async with world.http.get(f"{world.hub.url}diagnostics/subscription", params=params, headers=proof(world)):
        assert compared == [1]


async def test_a_failure_is_told_in_words_with_its_next_try(world: World) -> None:
    await failed_delivery(world)
    document = await about(world, headers=proof(world))
    assert document["last_failure"] == "the callback answered 500"
    assert document["last_delivery"] is None
    assert document["next_try"] > document["deliveries"][0]["at"]  # type: ignore[index,operator]
    assert document["owed"][0]["tries"] == 1  # type: ignore[index]


async def test_a_waiting_check_and_a_failed_one_are_told(world: World) -> None:
    world.subscriber.reply = lambda _check: web.Response(status=503)
    data = [("hub.mode", "subscribe"), ("hub.topic", world.topic), ("hub.callback", world.subscriber.url())]
    async with world.http.post(world.hub.url, data=data) as answer:
        assert answer.status == 202
    await until(lambda: world.hub.subscriptions.history(world.topic, world.subscriber.url()))
    document = await about(world)
    assert document["state"] == "not subscribed"
    assert document["waiting_check"]["mode"] == "subscribe"  # type: ignore[index]
    assert document["waiting_check"]["tries"] == 1  # type: ignore[index]
    assert "the callback answered 503, expected 2xx" in document["history"][0]["what"]  # type: ignore[index]


async def test_a_topic_s_last_fetch_and_outcome(world: World) -> None:
    await world.ask("subscribe")
    await world.publish(atom(1))
    assert world.hub._parts is not None
    await world.hub._parts.intake.idle()
    document = await world.get("diagnostics/topic", topic=world.topic)
    assert document["subscribers"] == 1
    assert document["last_fetch"]
    assert document["outcome"] == "fetched, 1 new or changed entries"
    assert document["last_publication"]
    to_anybody = await world.get("diagnostics/topic", 200, {"Authorization": "Bearer x"}, topic=world.topic)
    assert to_anybody == {"topic": world.topic, "state": "well", "text": "fetched and sent on"}
    await world.get("diagnostics/topic", 400, topic="nonsense")
    await world.get("diagnostics/topic", 400)


async def test_anybody_may_ask_what_is_wrong_with_a_topic_and_is_told_its_class(world: World) -> None:
    async def asked(topic: str) -> dict[str, object]:
        found: dict[str, object] = await world.get("diagnostics/topic", 200, {"X-Nobody": "1"}, topic=topic)
        return found

    assert (await asked(world.topic))["state"] == "unknown"
    assert (await asked("http://169.254.169.254/feed"))["state"] == "refused"
    await world.ask("subscribe")
    assert world.hub._parts is not None
    intake = world.hub._parts.intake
    for document, state, outcome in (
        (b'<!DOCTYPE feed [<!ENTITY a "&b;&b;">]><feed/>', "unsafe", "the document was refused: "),
        (
            b"<feed>" + b"x" * IntakeConfig().max_body_bytes,
            "too-large",
            "the document was refused: the answer is longer than",
        ),
        (b"<nothing/>", "whole", "fetched, the content changed"),
        (atom(1), "well", "fetched, 1 new or changed entries"),
    ):
        world.publisher.body, world.publisher.content_type = document, "application/atom+xml"
        await world.ping()
        await intake.idle()
        assert (await asked(world.topic))["state"] == state
        known = await world.get("diagnostics/topic", topic=world.topic)
        assert known["outcome"].startswith(outcome)
        # A document is no fault of the network: the next ping is waited for, and nothing is tried again.
        assert intake.waiting == 0


async def test_dead_letters_can_be_looked_at_and_replayed(world: World) -> None:
    number = await failed_delivery(world)
    assert (await world.get("diagnostics/dead-letters")) == {"dead_letters": []}
    await world.wait_ahead(2 * 86_400)  # older than a delivery is ever tried again
    await world.subscriber.next_received()
    await until(world.hub.delivery.dead_letters)
    (letter,) = (await world.get("diagnostics/dead-letters"))["dead_letters"]
    assert (letter["topic"], letter["callback"]) == (world.topic, world.subscriber.url())
    assert letter["reason"] == "the callback answered 500"
    assert letter["attempts"] == 2
    assert (await world.get("diagnostics/dead-letters", topic="http://other.example/")) == {"dead_letters": []}
    assert (await world.get("diagnostics/dead-letters", after=str(letter["id"]))) == {"dead_letters": []}
    await world.get("diagnostics/dead-letters", 400, after="x")
    await world.get("diagnostics/dead-letters", 401, {"Authorization": "Bearer x"})
    replay = f"{world.hub.url}diagnostics/dead-letters/{letter['id']}/replay"
    async with world.http.post(replay) as answer:
        assert answer.status == 401
    world.subscriber.status = 200
    async with world.http.post(replay, headers=OPERATOR) as answer:
        assert answer.status == 202
    assert (await world.subscriber.next_received()).body == atom(1)
    await until(lambda: not world.hub.delivery.owed(number))
    async with world.http.post(replay, headers=OPERATOR) as answer:
        assert answer.status == 404


async def test_a_difference_is_what_was_not_acknowledged_yet(world: World) -> None:
    """hub.difference: entry by entry, in order, also after failures; and whole again when something was missed."""
    await world.ask("subscribe", ("hub.difference", "true"), path="/part")
    await world.ask("subscribe", path="/whole")

    async def both(*entries: int) -> dict[str, bytes]:
        got = [await world.publish(atom(*entries)), await world.subscriber.next_received()]
        return {one.path_qs: one.body for one in got}

    assert (await both(1))["/part"].count(b"<entry>") == 1
    bodies = await both(2, 1)
    assert b"urn:entry:2" in bodies["/part"]
    assert b"urn:entry:1" not in bodies["/part"]
    assert bodies["/whole"] == atom(2, 1)
    await until(lambda: not world.hub.delivery.backlog)
    document = await world.get("diagnostics/subscription", topic=world.topic, callback=world.subscriber.url("/part"))
    assert document["difference"] is True
    # Given up for good: from then on whole documents, because a difference would leave a gap.
    world.subscriber.status = 500
    await both(3, 2, 1)
    await until(lambda: world.hub.delivery.owed(world.found("/part").id))
    await until(lambda: world.hub.delivery.owed(world.found("/whole").id))
    await world.wait_ahead(2 * 86_400)
    for _ in range(2):
        await world.subscriber.next_received()
    await until(lambda: len(world.hub.delivery.dead_letters()) == 2)
    world.subscriber.status = 200
    assert (await both(4, 3, 2, 1))["/part"] == atom(4, 3, 2, 1)


async def test_difference_is_true_or_false(world: World, subscriber: Subscriber) -> None:
    data = [("hub.mode", "subscribe"), ("hub.topic", world.topic), ("hub.callback", subscriber.url())]
    async with world.http.post(world.hub.url, data=[*data, ("hub.difference", "maybe")]) as answer:
        assert answer.status == 400
        assert await answer.text() == "hub.difference must be true or false\n"
