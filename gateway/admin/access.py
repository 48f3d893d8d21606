"""Who may look, and who may do something: tokens with two roles, or this machine alone.

Without tokens the port listens on loopback only. A browser on this machine must then not be used by other sites: the
name under which the port is asked must be a loopback one (a name that somebody else's DNS sends here is not), and
requests of other origins are refused by `serving.answers`.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum

from aiohttp import web

from gateway.admin.config import AdminConfig, is_loopback
from serving.answers import HttpError, bearer
from serving.fairness import prefix_of
from serving.limits import Limiter
from serving.tokens import TokenGuesses, is_one_of

MAX_CLIENTS = 10_000
PROXIED = ("X-Forwarded-For", "Forwarded", "Via")
"""What proxies add: to a port without tokens, everybody behind one would be this machine."""
WHO_DIGITS = 8


class AdminRole(IntEnum):
    VIEWER = 1
    OPERATOR = 2


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `who` tells tokens apart in the audit log without giving them away."""

    role: AdminRole
    who: str
    address: str


class AdminAccess:
    def __init__(self, config: AdminConfig, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._monotonic = monotonic
        self._requests = Limiter(config.per_client, MAX_CLIENTS)
        self._guesses = TokenGuesses()
        self.refused = 0

    def take_up(self, viewer_tokens: tuple[str, ...], operator_tokens: tuple[str, ...]) -> bool:
        """Other tokens from now on; says whether they are others. Raises `ValueError` when there would be none."""
        config = self._config
        if (viewer_tokens, operator_tokens) == (config.viewer_tokens, config.operator_tokens):
            return False
        if not viewer_tokens and not operator_tokens:
            raise ValueError("a port that asked for tokens goes on asking")
        self._config = replace(config, viewer_tokens=viewer_tokens, operator_tokens=operator_tokens)
        return True

    def caller(self, request: web.Request, needed: AdminRole = AdminRole.VIEWER) -> Caller:
        """Raises `HttpError` when the role is not enough."""
        address = request.remote or ""
        wait = self._requests.take(address, self._monotonic())
        if wait > 0:
            self.refused += 1
            raise HttpError(429, "you send too many requests", wait)
        caller = self._known(request, address)
        if caller.role < needed:
            self.refused += 1
            raise HttpError(403, "this token may look and not act: an operator's is needed")
        return caller

    def _known(self, request: web.Request, address: str) -> Caller:
        config = self._config
        if not config.viewer_tokens and not config.operator_tokens:
            self._check_name(request)
            return Caller(AdminRole.OPERATOR, "loopback", address)
        given = bearer(request)
        if given is None:
            self.refused += 1
            raise HttpError(401, "send Authorization: Bearer TOKEN")
        network, now = prefix_of(address), self._monotonic()
        wait = self._guesses.wait(network, now)
        if wait > 0:
            self.refused += 1
            raise HttpError(429, "too many wrong tokens came from your network: try again later", wait)
        if not self._guesses.is_known(given, config.operator_tokens + config.viewer_tokens, network, now):
            self.refused += 1
            raise HttpError(401, "this token is not known")
        operates = is_one_of(given, config.operator_tokens)
        who = hashlib.sha256(given.encode("utf-8", "surrogateescape")).hexdigest()[:WHO_DIGITS]
        return Caller(AdminRole.OPERATOR if operates else AdminRole.VIEWER, f"token {who}", address)

    def _check_name(self, request: web.Request) -> None:
        host = request.host.rpartition(":")[0] if request.host.count(":") == 1 else request.host
        host = host.partition("]")[0].removeprefix("[")
        if host != "localhost" and not is_loopback(host):
            self.refused += 1
            raise HttpError(403, "without tokens, ask under 127.0.0.1 or localhost")
        if any(name in request.headers for name in PROXIED):
            self.refused += 1
            raise HttpError(403, "a proxy may have brought a stranger: behind one, this port needs tokens")
