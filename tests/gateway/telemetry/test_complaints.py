"""What is refused is told at the operator's terminal: a line each, and of very many their number."""

import pytest

from gateway.telemetry.complaints import LINES, WINDOW, Complaints, said_of
from push_hub.events import CanaryArrived, IntentFailed, PingAccepted
from push_hub.intake.events import DocumentRefused, FetchFailed, ParserGaveUp
from push_hub.intake.trouble import FetchTrouble
from serving.events import LimitReached, RequestRefused

FAILED = IntentFailed("subscribe", "http://t.example/feed", "http://s.example/cb?key=geheim", "it answered 404")


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (FAILED, "refused: subscribe http://s.example/cb?… to http://t.example/feed: it answered 404"),
        (
            DocumentRefused("http://t.example/", "the answer is longer than 9 bytes", FetchTrouble.TOO_LARGE),
            "document refused (too-large): http://t.example/: the answer is longer than 9 bytes",
        ),
        (FetchFailed("http://t.example/", "no", None), "not fetched: http://t.example/: no; waiting for the next ping"),
        (ParserGaveUp("http://t.example/", "slow"), "feed passed on whole: http://t.example/: slow"),
        (RequestRefused(403, "not yours"), "request refused: not yours"),
        (RequestRefused(404, "nothing here"), None),
        (PingAccepted("http://t.example/"), None),
        (CanaryArrived(0.1), None),
    ],
)
def test_one_line_says_what_was_refused_and_no_key_is_in_it(event: object, line: str | None) -> None:
    assert said_of(event) == line


def test_lines_of_one_kind_are_bounded_and_their_number_is_told() -> None:
    now, lines = 0.0, list[str]()
    complaints = Complaints("psph hub", lines.append, lambda: now)
    for _ in range(LINES + 7):
        complaints.observe(FAILED)
    complaints.observe(LimitReached("per_client"))
    assert len(lines) == LINES + 1
    now = WINDOW
    complaints.observe(FAILED)
    assert lines[-2:] == ["psph hub: and 7 more of IntentFailed", f"psph hub: {said_of(FAILED)}"]
    complaints.close()
    assert len(lines) == LINES + 3


def test_nothing_of_a_strangers_text_moves_the_cursor() -> None:
    lines: list[str] = []
    Complaints("x", lines.append).observe(FetchFailed("http://t.example/", "a\x1b[2J\nb", None))
    assert lines == ["x: not fetched: http://t.example/: a [2J b; waiting for the next ping"]
