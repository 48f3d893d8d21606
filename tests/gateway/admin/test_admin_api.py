"""The admin port: what it shows, what it does, and whom it lets in."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from gateway.admin.access import AdminRole as AdminRole
from gateway.admin.config import AdminConfig
from gateway.config import ConfigError, check
from gateway.protocols.rest.adapter import RestConfig
from psirp_stack.control.codes import ServiceRole
from psirp_stack.control.messages import AgedState, LinkState, LinkStates, encode
from tests.gateway.admin.admin_world import AdminWorld, admin_world
from tests.gateway.web_world import Domain, Reader, started_world
from tests.waiting import until


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[AdminWorld]:
    async with admin_world(tmp_path) as world:
        yield world


async def test_a_snapshot_shows_network_topics_numbers_and_events(world: AdminWorld) -> None:
    await world.subscribe()
    await world.publish()
    await until(lambda: world.admin.telemetry.delivered.total)
    seen = await world.get("/api/snapshot")
    assert seen["network"]["nodes"] == ["n0", "n1", "n2"]
    assert seen["network"]["links"] == [["n0", "n1"], ["n1", "n2"]]
    assert seen["network"]["rendezvous"] == ["n1"]
    assert seen["network"]["name"] == "n2"
    assert seen["totals"]["delivered"] == 1
    assert seen["totals"]["subscribers"] == 1
    (row,) = seen["topics"]
    assert (row["topic"], row["state"], row["publisher"]) == (world.blog.topic, "from the network", "n0")
    assert {event["event"] for event in seen["events"]} >= {"CrossingArrived", "PublicationAccepted"}
    assert {check["name"] for check in seen["health"]} >= {"store", "queues", "gateway store", "rendezvous"}


async def test_a_node_that_claims_a_role_without_the_domains_word_is_shown(world: AdminWorld) -> None:
    claim = LinkState("n0", 1 << 50, 1, int(ServiceRole.TOPOLOGY), (("n1", 1500),))
    world.network.nodes["n2"].node.link_state.receive(
        1, encode(LinkStates((AgedState(0, encode(claim)),))), asyncio.get_running_loop().time()
    )
    seen = await world.get("/api/snapshot")
    (doubted,) = seen["network"]["doubted"]
    assert (doubted["node"], doubted["roles"]) == ("n0", "topology")
    assert "shows no grant" in doubted["reason"]
    assert seen["network"]["topology"] == ["n1"]
    assert seen["network"]["drops"]["link state: role claimed without a grant"] == 1


async def test_a_topic_shows_its_links_and_the_way_of_a_publication_through_both_domains(world: AdminWorld) -> None:
    await world.subscribe()
    await world.publish()
    await until(lambda: world.admin.telemetry.delivered.total)
    seen = await world.get("/api/topic", topic=world.blog.topic)
    assert seen["why"]["matched"]
    assert seen["why"]["publishers"] == ["n0"]
    (carried,) = seen["paths"]["filters"]
    assert carried["links"] == [["n0", "n1"], ["n1", "n2"]]
    assert carried["missing"] == []
    (way,) = [way for way in seen["ways"] if way["publication"] is not None]
    what = [step["what"] for step in way["steps"]]
    assert what[:2] == ["published by another gateway", "arrived from the network"]
    assert "the hub accepted it" in what
    assert any(one.startswith("delivered") for one in what)
    (elsewhere,) = [one for one in seen["elsewhere"] if one["version"] == way["version"]]
    assert elsewhere["gateway"] == "gateway-b"
    told = [step["what"] for step in elsewhere["steps"]]
    assert told[0] == "the publisher pinged"
    assert "published in the network" in told
    # The publisher's node shows the filter that it was given, and it is the one that others plan.
    there = await world.get("/api/topic", of=world.b, topic=world.blog.topic)
    (sent,) = there["paths"]["filters"]
    assert sent["as_sent"]
    assert not carried["as_sent"]
    assert sent["links"] == carried["links"]


async def test_a_topic_is_found_by_a_part_of_its_address_or_id_or_version(world: AdminWorld) -> None:
    await world.subscribe()
    await world.publish()
    await until(lambda: world.admin.telemetry.delivered.total)
    (row,) = (await world.get("/api/snapshot"))["topics"]
    version = (await world.get("/api/topic", topic=world.blog.topic))["ways"][0]["version"]
    for text in ("/feed", row["sid"], row["rid"], row["rid"][10:30], version):
        found = await world.get("/api/topics", q=text)
        assert [one["topic"] for one in found] == [world.blog.topic], text
    assert await world.get("/api/topics", q="nowhere%") == []
    by_id = await world.get("/api/topic", sid=row["sid"], rid=row["rid"])
    assert by_id["row"]["topic"] == world.blog.topic
    await world.get("/api/topic", 404, sid=row["rid"], rid=row["sid"])
    await world.get("/api/topic", 400, topic="no address")


async def test_an_operator_pauses_resumes_retries_refetches_and_ends_and_all_is_in_the_audit_log(
    world: AdminWorld,
) -> None:
    await world.subscribe()
    await world.publish()
    about = {"topic": world.blog.topic, "callback": world.reader.callback}
    assert (await world.act("pause", **about)) == {"done": True}
    await world.publish(arrives=False)
    number = world.a.hub.subscriptions.page(world.blog.topic, 0, 1, 0.0)[0].id
    await until(lambda: world.a.hub.delivery.owed(number))
    (shown,) = (await world.get("/api/topic", topic=world.blog.topic))["subscribers"]
    assert (shown["paused"], shown["owed"], shown["failure"]) == (True, 1, "paused by the operator")
    assert (await world.act("retry", **about)) == {"done": False}
    before = len(world.reader.received)
    assert (await world.act("resume", **about)) == {"done": True}
    await until(lambda: len(world.reader.received) > before)
    assert (await world.act("fetch", topic=world.blog.topic)) == {"done": True}
    assert (await world.act("verify", **about)) == {"done": True}
    assert (await world.act("unsubscribe", **about)) == {"done": True}
    await until(lambda: not world.a.hub.subscriptions.count(world.blog.topic))
    assert (await world.act("unsubscribe", **about)) == {"done": False}
    lines = [json.loads(line) for line in world.admin.audit.path.read_text().splitlines()]
    done = [line["action"] for line in lines if line["outcome"] == "done"]
    assert done == ["pause", "resume", "fetch", "verify", "unsubscribe"]
    assert all(line["who"] == "loopback" and line["topic"] == world.blog.topic for line in lines)
    assert (await world.get("/api/audit"))[0]["outcome"] == "nothing to do"


async def test_a_failing_callback_shows_the_reason_and_is_tried_when_told(world: AdminWorld) -> None:
    answers: list[int] = []

    async def agree(request: web.Request) -> web.Response:
        return web.Response(text=request.query["hub.challenge"])

    async def refuse(request: web.Request) -> web.Response:
        answers.append(503 if not answers else 200)
        return web.Response(status=answers[-1])

    app = web.Application()
    app.router.add_get("/cb", agree)
    app.router.add_post("/cb", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    callback = f"http://127.0.0.1:{runner.addresses[0][1]}/cb"
    try:
        form = {"hub.mode": "subscribe", "hub.topic": world.blog.topic, "hub.callback": callback}
        async with world.http.post(world.a.hub.url, data=form) as answer:
            assert answer.status == 202
        await until(lambda: world.a.hub.subscriptions.count(world.blog.topic))
        await world.publish(arrives=False)
        number = world.a.hub.subscriptions.page(world.blog.topic, 0, 1, 0.0)[0].id
        await until(lambda: world.a.hub.delivery.owed(number))
        (shown,) = (await world.get("/api/topic", topic=world.blog.topic))["subscribers"]
        assert shown["failure"] == "the callback answered 503"
        assert shown["next_try"]
        assert (await world.act("retry", topic=world.blog.topic, callback=callback)) == {"done": True}
        await until(lambda: not world.a.hub.delivery.owed(number))
        assert answers == [503, 200]
    finally:
        await runner.cleanup()


async def test_a_delivery_that_was_given_up_is_shown_and_replayed(world: AdminWorld) -> None:
    await world.subscribe()
    schedule = world.a.hub.delivery._config.schedule
    object.__setattr__(schedule, "attempts", 1)
    answers = world.reader.answers = [500]
    await world.publish(arrives=False)
    await until(world.a.hub.delivery.dead_letters)
    (letter,) = (await world.get("/api/topic", topic=world.blog.topic))["dead"]
    assert letter["reason"] == "the callback answered 500"
    before = len(world.reader.received)
    assert (await world.act("replay", topic=world.blog.topic, letter=letter["number"])) == {"done": True}
    await until(lambda: len(world.reader.received) > before)
    assert answers == []
    assert (await world.act("replay", topic=world.blog.topic, letter=letter["number"])) == {"done": False}
    await world.act("replay", 404, topic=world.blog.topic)


async def test_everybody_gets_the_same_snapshot_and_a_slow_viewer_is_passed_over(world: AdminWorld) -> None:
    async def first_two(http: ClientSession) -> list[int]:
        numbers: list[int] = []
        async with http.get(f"{world.admin.url}api/stream") as answer:
            assert answer.content_type == "text/event-stream"
            async for line in answer.content:
                if line.startswith(b"data: "):
                    numbers.append(json.loads(line[6:])["number"])
                if len(numbers) == 2:
                    return numbers
        return numbers

    seen = await asyncio.gather(*(first_two(world.http) for _ in range(20)))
    assert all(numbers[0] < numbers[1] for numbers in seen)
    assert len({tuple(numbers) for numbers in seen}) <= 2
    assert world.admin.snapshots.made <= 4
    await until(lambda: len(world.admin.viewers) == 0)


@pytest.mark.parametrize(
    ("path", "body", "kind", "status"),
    [
        ("explode", b'{"topic": "http://a.example/"}', "application/json", 404),
        ("pause", b"topic=1", "application/x-www-form-urlencoded", 415),
        ("pause", b"{}", "application/json", 400),
        ("pause", b'{"topic": "http://a.example/", "callback": 7}', "application/json", 400),
        ("pause", b'{"topic": "not a url", "callback": "http://a.example/"}', "application/json", 400),
        ("pause", b'{"topic": "http://a.example/"}', "application/json", 400),
        ("pause", b'{"topic": "http://a.example/", "x": 1}', "application/json", 400),
        ("pause", b"\xff" * 20_000, "application/json", 413),
    ],
)
async def test_a_request_that_is_none_changes_nothing(
    world: AdminWorld, path: str, body: bytes, kind: str, status: int
) -> None:
    url = f"{world.admin.url}api/actions/{path}"
    async with world.http.post(url, data=body, headers={"Content-Type": kind}) as answer:
        assert answer.status == status, await answer.text()
    assert not world.admin.audit.path.exists()


async def test_without_tokens_other_sites_and_other_names_get_nothing(world: AdminWorld) -> None:
    url = f"{world.admin.url}api/snapshot"
    for headers in ({"Host": "rebound.example:80"}, {"Origin": "http://evil.example"}):
        async with world.http.get(url, headers=headers) as answer:
            assert answer.status == 403
    post = f"{world.admin.url}api/actions/fetch"
    async with world.http.post(post, json={"topic": world.blog.topic}, headers={"Origin": "null"}) as answer:
        assert answer.status == 403


async def test_tokens_have_roles_and_only_an_operator_acts(tmp_path: Path) -> None:
    config = AdminConfig(viewer_tokens=("v" * 20,), operator_tokens=("o" * 20,))
    async with admin_world(tmp_path, config) as world:
        await world.subscribe()
        url = world.admin.url
        looks, acts = {"Authorization": "Bearer " + "v" * 20}, {"Authorization": "Bearer " + "o" * 20}
        about = {"topic": world.blog.topic, "callback": world.reader.callback}
        for path in ("api/snapshot", "api/stream", "api/topic", "api/who", "metrics"):
            async with world.http.get(url + path) as answer:
                assert answer.status == 401
        async with world.http.get(url + "api/who", headers=looks) as answer:
            assert await answer.json() == {"role": "viewer"}
        async with world.http.post(url + "api/actions/pause", json=about, headers=looks) as answer:
            assert answer.status == 403
        async with world.http.get(url + "api/audit", headers=looks) as answer:
            assert answer.status == 403
        async with world.http.post(url + "api/actions/pause", json=about, headers=acts) as answer:
            assert await answer.json() == {"done": True}
        (line,) = [json.loads(line) for line in world.admin.audit.path.read_text().splitlines() if '"done"' in line]
        assert line["who"].startswith("token ")
        assert "o" * 20 not in world.admin.audit.path.read_text()
        # The probes of a container engine have no token.
        for path in ("healthz", "readyz"):
            async with world.http.get(url + path) as answer:
                assert answer.status == 200
        for _ in range(10):
            async with world.http.get(url + "api/who", headers={"Authorization": "Bearer guess"}) as answer:
                assert answer.status == 401
        # Also the right one: otherwise whoever guesses goes on as fast as before.
        for headers in ({"Authorization": "Bearer guess"}, looks, acts):
            async with world.http.get(url + "api/who", headers=headers) as answer:
                assert answer.status == 429
                assert 0 < float(answer.headers["Retry-After"]) <= 6
        assert world.admin.access.refused > 10


async def test_what_may_be_a_key_in_a_callback_is_for_operators_only(world: AdminWorld) -> None:
    callback = f"{world.reader.callback}?key=hidden"
    form = {"hub.mode": "subscribe", "hub.topic": world.blog.topic, "hub.callback": callback}
    async with world.http.post(world.a.hub.url, data=form) as answer:
        assert answer.status == 202
    await until(lambda: world.a.hub.subscriptions.count(world.blog.topic))
    shown = [await world.admin.topics.detail(world.blog.topic, role) for role in (AdminRole.VIEWER, AdminRole.OPERATOR)]
    assert ["hidden" in str(one.subscribers) for one in shown] == [False, True]
    assert "hidden" not in json.dumps(await world.get("/api/snapshot"))


def test_another_address_needs_tokens() -> None:
    with pytest.raises(ValueError, match="viewer_tokens_file"):
        AdminConfig(host="0.0.0.0")
    AdminConfig(host="0.0.0.0", viewer_tokens=("x",))
    AdminConfig(host="::1")


async def test_the_audit_log_is_bounded_and_nothing_is_done_that_cannot_be_in_it(tmp_path: Path) -> None:
    async with admin_world(tmp_path, AdminConfig(audit_bytes=4096)) as world:
        await world.subscribe()
        for _ in range(20):
            await world.act("fetch", topic=world.blog.topic)
        path = world.admin.audit.path
        before = path.with_name(path.name + ".1")
        assert path.stat().st_size + before.stat().st_size <= 4096
        assert path.stat().st_mode & 0o777 == 0o600
        path.unlink()
        path.mkdir()
        about = {"topic": world.blog.topic, "callback": world.reader.callback}
        assert "audit log" in await world.act("pause", 503, **about)
        assert not world.a.hub.delivery.is_paused(1)


def test_the_section_admin_is_read_and_refused_by_key(tmp_path: Path) -> None:
    base: dict[str, object] = {"network": {"attach": "node.sock"}}
    assert check(dict(base), tmp_path).admin is None
    tokens = tmp_path / "tokens"
    tokens.write_text("one\ntwo\n")
    tokens.chmod(0o600)
    section = {"listen": "0.0.0.0:0", "viewer_tokens_file": "tokens", "peers": ["http://10.0.0.1:8090/"]}
    made = check(base | {"admin": section}, tmp_path).admin
    assert made is not None
    assert (made.host, made.viewer_tokens, made.operator_tokens) == ("0.0.0.0", ("one", "two"), ())
    for wrong, key in (
        ({"listen": "0.0.0.0:0"}, "admin.listen: 0.0.0.0 can be reached from other machines"),
        ({"listen": "here"}, "admin.listen"),
        ({"listen": "127.0.0.1:0", "peers": ["nowhere"]}, "admin.peers[0]"),
        ({"listen": "127.0.0.1:0", "operator_tokens_file": "missing"}, "admin.operator_tokens_file"),
        ({"colour": 1}, "admin.colour"),
    ):
        with pytest.raises(ConfigError) as refused:
            check(base | {"admin": wrong}, tmp_path)
        assert key in str(refused.value)
    tokens.chmod(0o644)
    with pytest.raises(ConfigError, match="others can read"):
        check(base | {"admin": section}, tmp_path)


async def test_what_never_was_at_the_hub_is_found_and_shown_too(tmp_path: Path) -> None:
    """Topics of the web port and people: by name and by id, with the way of what was published."""
    streams, topic = RestConfig(anyone_may_publish=True), "https://rest.example/feed"
    async with (
        started_world(tmp_path) as world,
        world.domain("n0", "a", streams=streams, admin=AdminConfig()) as a,
        world.domain("n2", "b", admin=AdminConfig()) as b,
    ):
        assert a.gateway.admin is not None
        assert b.gateway.admin is not None
        b.gateway.admin.peers.add(a.gateway.admin.url)

        async def ask(at: Domain, path: str, **query: str) -> Any:
            assert at.gateway.admin is not None
            async with world.http.get(f"{at.gateway.admin.url}api/{path}", params=query) as answer:
                assert answer.status == 200, await answer.text()
                return await answer.json()

        async with world.http.get(b.url("/topics"), params={"name": topic}) as stream:
            async with world.http.post(a.url("/topics"), params={"name": topic}, data="news") as answer:
                published = await answer.json()
            assert (await Reader(stream).next())[1]["text"] == "news"
            for at in (a, b):
                for text in ("rest.example", published["sid"], published["rid"], published["origin"]):
                    assert [row["topic"] for row in await ask(at, "topics", q=text)] == [topic], text
            (way,) = (await ask(a, "topic", topic=topic))["ways"]
            assert [step["what"] for step in way["steps"]] == ["published in the network"]
            version = way["version"]
            seen = await ask(b, "topic", topic=topic)
            assert seen["why"]["matched"]
            (way,) = seen["ways"]
            assert way["version"] == version
            assert [step["what"] for step in way["steps"]][1:] == [
                "arrived from the network",
                "taken by the rest adapter",
            ]
            (elsewhere,) = seen["elsewhere"]
            assert elsewhere["gateway"] == "gateway-a"
        async with world.http.post(a.url("/chat/session"), json={"user": "anna"}) as answer:
            headers = {"Authorization": f"Bearer {(await answer.json())['token']}"}
        wish = {"partner": "bob@b.example"}
        async with world.http.post(a.url("/chat/conversations"), json=wish, headers=headers) as answer:
            assert answer.status == 201
        (row,) = [row for row in await ask(a, "topics", q="bob@b") if "/" not in row["topic"]]
        assert (row["topic"], row["state"]) == ("bob@b.example", "waits for a publisher")
        seen = await ask(a, "topic", topic="bob@b.example")
        assert (seen["row"]["sid"], seen["why"]["matched"]) == (row["sid"], False)
