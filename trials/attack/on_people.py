"""Who pretends to be somebody else at a gateway's doors for people: by a name that looks alike, by a guessed token."""

import asyncio
import json
import secrets
import time
import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import cache
from urllib.parse import quote

from perf.loopback import LoopbackClient
from serving.tokens import WRONG_TOKENS
from trials.attack.networks import OPERATORS
from trials.attack.places import ADMIN_PORT, HUB, OPERATOR_TOKEN, STRANGER, WEB_PORT, stranger_address
from trials.attack.stranger import MEBIBYTE, PATIENCE, Attack, Stranger, Victim

PEOPLE = 300
SECTIONS = f"""
[admin]
listen = "{HUB}:{ADMIN_PORT}"
operator_tokens_file = "{OPERATORS}"

[web]
listen = "{HUB}:{WEB_PORT}"
publish_tokens_file = "{OPERATORS}"

[chat]
people = {PEOPLE}
"""
TAKEN = 201
OPENED = range(200, 300)
OTHER_NETWORKS = 250
LISTENED = (401, 403)
"""Answers to a token that was compared and is not known."""
NAMES_OF_NETWORK = 15
"""Below what one may take at once (20)."""
VICTIM = "pasha-scope"
CYRILLIC = str.maketrans("acehijopsvxy", "\u0430\u0441\u0435\u04bb\u0456\u0458\u043e\u0440\u0455\u0475\u0445\u0443")
GREEK = str.maketrans("aiopuvy", "\u03b1\u03b9\u03bf\u03c1\u03c5\u03bd\u03b3")
"""Letters that look like these."""
SPEAKING = ("admin", "root", "support", "security", "operator", "postmaster", "moderator", "system", "hub")
HIDDEN = "\u0000\u00ad\u034f\u115f\u200b\u200d\u202e\u2060\u2800\u3164\ufe0f\ufeff\uffa0\U000e0101"
"""Characters that show nothing."""
FORMS_TRIED = 8


@cache
def other_forms() -> dict[str, list[str]]:
    """Of each letter, as far as Unicode folds them back to it: wide, bold, in a circle, raised, and so on."""
    forms: dict[str, list[str]] = {}
    for code in range(0x80, 0x20000):
        folded = unicodedata.normalize("NFKC", chr(code)).lower()
        if len(folded) == 1 and chr(code).lower() != folded:
            forms.setdefault(folded, []).append(chr(code))
    return forms


def misleading(name: str) -> Iterator[str]:
    """Spellings of a name that is taken, or that nobody may have."""
    yield from (name.upper(), name.title(), f" {name} ", name.replace("o", "0"), name.replace("l", "1"))
    yield from (name.replace("m", "rn"), name.translate(CYRILLIC), name.translate(GREEK))
    yield from (f"{name[:2]}{hidden}{name[2:]}" for hidden in HIDDEN)
    for place, letter in enumerate(name):
        forms = other_forms().get(letter, [])
        for other in (
            letter.translate(CYRILLIC),
            letter.translate(GREEK),
            *forms[:: max(1, len(forms) // FORMS_TRIED)],
        ):
            yield name[:place] + other + name[place + 1 :]


class Doors:
    """Requests to the doors of the gateway for people."""

    def __init__(self, stranger: Stranger) -> None:
        self._stranger = stranger

    async def ask(
        self, port: int, target: str, source: str, *, token: str | None = None, body: object = None, post: bool = False
    ) -> tuple[int, bytes]:
        client = LoopbackClient(f"http://{HUB}:{port}/", source)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            async with asyncio.timeout(PATIENCE):
                sent = b"" if body is None else json.dumps(body).encode()
                method = "POST" if post or body is not None else "GET"
                return await client.request(method, target, sent, headers | {"Content-Type": "application/json"})
        except (ConnectionError, TimeoutError):
            return 0, b""
        finally:
            client.close()

    async def claim(self, name: str, source: str, what: str) -> tuple[int, bytes]:
        status, text = await self.ask(WEB_PORT, "/chat/session", source, body={"user": name})
        self._stranger.counts[f"{what} {status or 'unanswered'}"] += 1
        return status, text


async def names(stranger: Stranger) -> None:
    """Other spellings of somebody's name, and of names that speak for operators; then all names that there are.

    No network asks for more than it may at once, so each name is judged by what it looks like.
    """
    doors = Doors(stranger)
    status, text = await doors.claim(VICTIM, STRANGER, "first")
    if status != TAKEN:
        raise ValueError(f"nobody gets a name: {status} {text!r}")
    token = json.loads(text)["token"]
    wanted = [(name, word) for word in (VICTIM, *SPEAKING) for name in dict.fromkeys([word, *misleading(word)])]

    async def one(number: int, name: str, word: str) -> None:
        status, _ = await doors.claim(name, stranger_address(1 + number // NAMES_OF_NETWORK), "misleading")
        if status == TAKEN:
            stranger.breach(f"{name!a} was given, which can be taken for {word}")

    await stranger.together(one(number, *name) for number, name in enumerate(wanted))
    given = 1

    async def another(number: int) -> None:
        nonlocal given
        given += (await doors.claim(f"somebody-{number}", stranger_address(number), "any"))[0] == TAKEN

    number = 0
    while stranger.goes_on:
        await stranger.together(another(number + n) for n in range(200))
        number += 200
    if given > PEOPLE:
        stranger.breach(f"{given} people have names, allowed {PEOPLE}")
    status, _ = await doors.ask(WEB_PORT, "/chat/session", stranger_address(255), token=token)
    if status not in OPENED:
        stranger.breach(f"who had a name before is not known any more: {status}")


def guesses() -> Iterator[str]:
    token = OPERATOR_TOKEN
    near = ["x", token[:-1], token[1:], token + token[-1], token.swapcase(), token * 2, "null", "undefined", "*"]
    near += [f"{token},{token}", f"{token};", f"'{token}'", "' OR 1=1 --", "a" * 4000, "\xff" * 20]
    while True:
        yield from near
        yield from (secrets.token_urlsafe(32) for _ in near)


async def tokens(stranger: Stranger) -> None:
    """At the dashboard, at publishing by POST and at the chat: from one network as fast as it goes, and from many."""
    doors = Doors(stranger)
    began = time.monotonic()
    compared: Counter[tuple[int, str]] = Counter()
    made = guesses()
    publishing = f"/topics?name={quote('http://feed.innocent.example/feed', safe='')}"
    targets = ((ADMIN_PORT, "/api/who"), (ADMIN_PORT, "/metrics"), (WEB_PORT, publishing), (WEB_PORT, "/chat/session"))

    async def guess(number: int) -> None:
        port, target = targets[number % len(targets)]
        source = STRANGER if number % 3 else stranger_address(1 + number % OTHER_NETWORKS)
        status, _ = await doors.ask(port, target, source, token=next(made), post=target == publishing)
        stranger.counts[f"{target.partition('?')[0]} {status or 'unanswered'}"] += 1
        if status in OPENED:
            stranger.breach(f"a wrong token opened {target}")
        if status in LISTENED and target != "/chat/session":
            compared[port, source.rpartition(".")[0]] += 1

    number = 0
    while stranger.goes_on:
        await stranger.together(guess(number + n) for n in range(100))
        number += 100
    allowed = WRONG_TOKENS.burst + WRONG_TOKENS.per_second * (time.monotonic() - began) + 1
    for (port, network), most in compared.most_common(1):
        stranger.counts["most compared of one network"] = most
        if most > allowed:
            stranger.breach(f"{most} guesses of {network} were compared at port {port}, allowed {allowed:.0f}")
    right = [(await doors.ask(ADMIN_PORT, "/api/who", STRANGER, token=OPERATOR_TOKEN))[0] for _ in range(2)]
    if all(status in OPENED for status in right):
        stranger.breach("who guessed all the time is told when a guess is right")
    status, _ = await doors.ask(ADMIN_PORT, "/api/who", stranger_address(OTHER_NETWORKS + 1), token=OPERATOR_TOKEN)
    if status not in OPENED:
        stranger.breach(f"an operator is shut out by those who guess elsewhere: {status}")


ATTACKS = (
    Attack(
        "misleading-names",
        "other spellings of somebody's name and of names that speak for operators; then all names that there are",
        names,
        Victim.GATEWAY,
        # Up to 29,000 requests in 7 s, most of them refused by rate, made a gateway that had just begun grow by 79 MiB.
        memory=128 * MEBIBYTE,
        sections=SECTIONS,
    ),
    Attack(
        "guessed-tokens",
        f"tokens of operators, publishers and people, guessed from one network and from {OTHER_NETWORKS} more",
        tokens,
        Victim.GATEWAY,
        sections=SECTIONS,
    ),
)
