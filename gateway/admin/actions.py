"""What an operator can do from the dashboard. Each is written to the audit log before it is done, and after."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from gateway.admin.access import Caller
from gateway.admin.audit import AuditError, AuditLog
from push_hub.delivery import TooManyPausedError
from push_hub.ports import OverloadedError
from push_hub.protocol.urls import UrlError, normalised
from serving.answers import HttpError

if TYPE_CHECKING:
    from push_hub.hub import Hub

MAX_REASON = 200
ENDED = "ended by the hub's operator"

Act = Callable[["Hub", str, str], Awaitable[bool]]


async def _unsubscribe(hub: "Hub", topic: str, callback: str) -> bool:
    if not hub.is_subscribed(topic, callback):
        return False
    await hub.deny(topic, callback, ENDED)
    return True


async def _fetch(hub: "Hub", topic: str, _callback: str) -> bool:
    await hub.ping([topic])
    return True


def _replay_of(letter: int) -> Act:
    async def act(hub: "Hub", _topic: str, _callback: str) -> bool:
        return await hub.delivery.replay(letter)

    return act


ON_CALLBACKS: dict[str, Act] = {
    "retry": lambda hub, topic, callback: hub.retry_now(topic, callback),
    "pause": lambda hub, topic, callback: hub.pause(topic, callback),
    "resume": lambda hub, topic, callback: hub.resume(topic, callback),
    "verify": lambda hub, topic, callback: hub.reverify(topic, callback),
    "unsubscribe": _unsubscribe,
}
ON_TOPICS: dict[str, Act] = {"fetch": _fetch}
REPLAY = "replay"
"""Of a delivery that was given up, by its number."""


class Actions:
    def __init__(self, hub: "Hub", audit: AuditLog) -> None:
        self._hub = hub
        self._audit = audit
        self.done: dict[str, int] = {}

    async def run(
        self, caller: Caller, action: str, topic: str, callback: str | None, letter: int | None = None
    ) -> bool:
        """Whether there was something to do. Raises `HttpError`."""
        act = (ON_CALLBACKS | ON_TOPICS).get(action)
        if action == REPLAY and letter is not None:
            act = _replay_of(letter)
        if act is None:
            raise HttpError(404, f"there is no such action: {', '.join([*ON_CALLBACKS, *ON_TOPICS, REPLAY])}")
        try:
            topic = normalised(topic)
            callback = None if action in ON_TOPICS or action == REPLAY else normalised(callback or "")
        except UrlError as error:
            raise HttpError(400, f"topic or callback {error}") from None
        try:
            await self._audit.note(caller, action, topic, callback, "asked")
            did = await act(self._hub, topic, callback or "")
            await self._audit.note(caller, action, topic, callback, "done" if did else "nothing to do")
        except AuditError as error:
            raise HttpError(503, str(error)) from error
        except OverloadedError as error:
            raise HttpError(503, "too much is waiting", error.retry_after) from error
        except TooManyPausedError as error:
            raise HttpError(409, str(error)) from error
        self.done[action] = self.done.get(action, 0) + did
        return did
