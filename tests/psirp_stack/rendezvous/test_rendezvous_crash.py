"""kill -9 of a real rendezvous process: what it acknowledged is there, what topology must hear is said.

`PSPH_CRASHES=100` makes it long.
"""

import asyncio
import os
import random
import sys
from pathlib import Path

from psirp_stack.control.messages import PublishItem, SubscribeItem, UnpublishItem
from tests.psirp_stack.rendezvous.rendezvous_support import Desk, ident
from tests.psirp_stack.rendezvous.rendezvous_victim import ITEMS, SCOPE, requests

CRASHES = int(os.environ.get("PSPH_CRASHES", "3"))

State = set[tuple[str, int, bytes]]


async def test_kill_minus_nine_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    rng = random.Random(11)
    for crash in range(CRASHES):
        path = tmp_path / f"{crash}.db"
        victim = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.psirp_stack.rendezvous.rendezvous_victim", str(path), str(crash), "1"),
            stdout=asyncio.subprocess.PIPE,
        )
        assert victim.stdout is not None
        acknowledged = 0
        wanted = rng.randrange(50, 1500)
        while acknowledged < wanted:
            line = await victim.stdout.readline()
            assert line == b"%d\n" % acknowledged, "answers come in the order of the requests"
            acknowledged += 1
        victim.kill()
        rest = await victim.stdout.read()
        await victim.wait()
        acknowledged += rest.count(b"\n")
        check(path, crash, acknowledged)


def check(path: Path, seed: int, acknowledged: int) -> None:
    """The state is that after some prefix of the requests, and all that were acknowledged are in the prefix."""
    request_table = Desk(path)
    request_table.run()
    there: State = set()
    for number in range(ITEMS):
        rid = ident(100 + number)
        known = request_table.explain(SCOPE, rid)
        there |= {(name, 0, rid) for name in known.publishers} | {(name, 1, rid) for name in known.subscribers}
        match = request_table.last_match(SCOPE, rid)
        if match is not None:
            assert (match.publishers, match.subscribers) == (known.publishers, known.subscribers)
        # The victim's topology manager never answered, so every match is unanswered and has to be said again.
        assert match is not None or not (known.publishers and known.subscribers)
    states = list(prefixes(seed, acknowledged + 64 + 1))
    assert there in states[acknowledged:], "an acknowledged request was lost, or one was done by half"
    request_table.close()


def prefixes(seed: int, count: int) -> list[State]:
    """The state after each number of requests."""
    state: State = set()
    states: list[State] = [set()]
    for node, request in requests(seed)[:count]:
        assert not isinstance(request, int)
        role = 0 if isinstance(request, PublishItem | UnpublishItem) else 1
        entry = (node, role, getattr(request, "rid", b""))
        if isinstance(request, PublishItem | SubscribeItem):
            state.add(entry)
        else:
            state.discard(entry)
        states.append(set(state))
    return states
