"""The timing model: posts that are valid for a lifetime meet a receiver that opens windows. Nothing queues.

A success needs the post to find an open window, or a window to open before the post expires. With windows that begin
at Poisson times the shares have closed forms.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from perf.models.assumptions import Assumption, ModelError, check_not_negative, check_positive


class PostOutcome(StrEnum):
    SUCCESS = "success"
    FAILURE = "failure"
    """The lifetime ended first."""


class ExchangeOutcome(StrEnum):
    SUCCESS = "success"
    NOT_REACHED = "fail_1"
    """Timed out before the server took the request."""
    NOT_ANSWERED = "fail_2"
    """Timed out while the server worked on it."""


def post_succeeds(post: float, opened: float, lifetime: float, time_on: float) -> bool:
    """One post and one window: Eqs 4.1 and 4.2."""
    return opened < post < opened + time_on or post < opened < post + lifetime


def outcome_of_post(post: float, windows: Sequence[float], lifetime: float, time_on: float) -> PostOutcome:
    """`windows`: when they open, in order."""
    met = any(post_succeeds(post, opened, lifetime, time_on) for opened in windows)
    return PostOutcome.SUCCESS if met else PostOutcome.FAILURE


def response_of_post(post: float, windows: Sequence[float], lifetime: float, time_on: float) -> float | None:
    """Seconds from the post to when it is fetched; None when it never is."""
    times = [max(0.0, opened - post) for opened in windows if post_succeeds(post, opened, lifetime, time_on)]
    return min(times, default=None)


def empty_windows(posts: Sequence[float], windows: Sequence[float], lifetime: float, time_on: float) -> int:
    """Windows that passed without any post («no interaction»)."""
    return sum(not any(post_succeeds(post, opened, lifetime, time_on) for post in posts) for opened in windows)


def outcome_of_exchange(
    request: float, windows: Sequence[float], serve_time: float, timeout: float, time_on: float
) -> ExchangeOutcome:
    """A request that a server answers when it is connected; what it began in a window it finishes after it.

    A server that is connected already when the request comes serves it at once, which Eq 4.3 as printed leaves out.
    """
    served_at = min((max(request, opened) for opened in windows if opened + time_on > request), default=math.inf)
    if served_at > request + timeout:
        return ExchangeOutcome.NOT_REACHED
    if served_at + serve_time > request + timeout:
        return ExchangeOutcome.NOT_ANSWERED
    return ExchangeOutcome.SUCCESS


@dataclass(frozen=True, slots=True)
class TimingModel:
    """Windows of `time_on` seconds that begin every `spacing` seconds on average."""

    assumptions: ClassVar[tuple[Assumption, ...]] = (
        Assumption.POISSON_WINDOWS,
        Assumption.NO_SERVICE_TIME,
        Assumption.INDEPENDENT_PARTIES,
        Assumption.UNBOUNDED,
    )
    time_on: float
    spacing: float

    def __post_init__(self) -> None:
        check_positive(time_on=self.time_on, spacing=self.spacing)

    def success(self, lifetime: float) -> float:
        """No success only when no window begins from `time_on` before the post to `lifetime` after it."""
        check_not_negative(lifetime=lifetime)
        return -math.expm1(-(self.time_on + lifetime) / self.spacing)

    def within(self, seconds: float, lifetime: float) -> float:
        """The share of all posts that is fetched within so many seconds; failures are in no such share."""
        return self.success(min(seconds, lifetime)) if seconds >= 0 else 0.0

    def lifetime_for(self, share: float) -> float:
        """The smallest lifetime with which this share of posts succeeds."""
        if not 0 <= share < 1:
            raise ModelError(f"the share to reach is {share:g}; expected at least 0 and below 1")
        return max(0.0, -self.spacing * math.log1p(-share) - self.time_on)

    def mean_response(self, lifetime: float) -> float:
        """Of the posts that succeed: those that find a window wait for nothing, the others for the next one."""
        check_not_negative(lifetime=lifetime)
        closed = math.exp(-self.time_on / self.spacing)
        waited = self.spacing - (lifetime + self.spacing) * math.exp(-lifetime / self.spacing)
        return closed * waited / self.success(lifetime)
