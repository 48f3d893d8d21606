"""Secrets appear in no event, answer or error of a running gateway; `test_access_secrets_process` has a process."""

from pathlib import Path

import pytest
from aiohttp import ClientSession

from gateway.config import ConfigError, load
from gateway.gateway import Gateway
from gateway.operations.reload import plan_reload
from tests.gateway.crossing.test_crossing import Publisher, Subscriber
from tests.waiting import until

SECRETS = {
    "publishers": "publisher-7f3a91c2",
    "operator": "operator-55e0b7d4",
    "domain": "domain-secret-91d7c2ab34",
    "subscriber": "subscriber-e21f09aa",
}
CONFIG = """
[store]
path = "data"
[hub]
listen = "127.0.0.1:0"
allow_private = true
stop_grace = 0.5
publisher_tokens_file = "publishers"
operator_token_file = "operator"
[hub.canary]
enabled = false
[node]
name = "a"
roles = ["rendezvous", "topology"]
[node.domain]
secret_file = "domain"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    for name in ("publishers", "operator", "domain"):
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text(f"{SECRETS[name]}\n")
    (tmp_path / "gateway.toml").write_text(CONFIG)
    return tmp_path / "gateway.toml"


def leaks(where: str, text: str) -> list[str]:
    return [f"the {name} secret is in {where}" for name, secret in SECRETS.items() if secret in text]


async def test_events_pages_and_answers_hold_no_secret(file: Path) -> None:
    told: list[object] = []
    gateway = Gateway(load(file, {}), observer=told.append)
    await gateway.start()
    found: list[str] = []
    try:
        async with ClientSession() as http, Publisher() as publisher, Subscriber() as subscriber:

            async def look(method: str, path: str, **more: object) -> int:
                async with http.request(method, gateway.hub.url + path, **more) as answer:  # type: ignore[arg-type]
                    found.extend(leaks(f"{method} /{path}", f"{answer.headers} {await answer.text()}"))
                    return answer.status

            form = {
                "hub.mode": "subscribe",
                "hub.topic": publisher.topic,
                "hub.callback": subscriber.callback,
                "hub.secret": SECRETS["subscriber"],
            }
            assert await look("POST", "", data=form) == 202
            await until(lambda: gateway.hub.subscriptions.count(publisher.topic))
            bearer = {"Authorization": f"Bearer {SECRETS['publishers']}", "Content-Type": "text/plain"}
            assert (
                await look("POST", f"?hub.mode=publish&hub.url={publisher.topic}", headers=bearer, data=b"news") == 204
            )
            await until(lambda: subscriber.received)
            found += leaks("a delivery", str(subscriber.received))
            operator = {"Authorization": f"Bearer {SECRETS['operator']}"}
            for path in ("", "health", f"diagnostics?topic={publisher.topic}", "nowhere", ".well-known/websub"):
                await look("GET", path, headers=operator)
            await look("GET", f"diagnostics?topic={publisher.topic}&callback={subscriber.callback}", headers=operator)
            # Nearly right, and in the place of another: the refusals do not repeat them.
            for words in SECRETS.values():
                for given in (words, f"{words}x"):
                    headers = {"Authorization": f"Bearer {given}", "Content-Type": "text/plain"}
                    await look("POST", "?hub.mode=publish", headers=headers, data=b"")
                    await look("GET", f"diagnostics?topic={publisher.topic}", headers=headers)
                await look("POST", "", data={**form, "hub.secret": words * 20})
            found += leaks("the node's account of itself", await gateway.network.client.status())
    finally:
        await gateway.stop()
    for event in told:
        found += leaks(f"an event {type(event).__name__}", repr(event))
    assert told, "there was something to look at"
    assert not found


def test_errors_and_reloads_name_files_not_what_is_in_them(file: Path) -> None:
    before = load(file, {})
    (file.parent / "publishers").write_text("another-one\n")
    assert not leaks("a reload", "\n".join(plan_reload(before, load(file, {})).lines()))
    (file.parent / "publishers").chmod(0o644)
    with pytest.raises(ConfigError) as error:
        load(file, {})
    assert not leaks("an error", str(error.value))


def test_the_search_finds() -> None:
    assert leaks("here", f"x{SECRETS['operator']}x") == ["the operator secret is in here"]
