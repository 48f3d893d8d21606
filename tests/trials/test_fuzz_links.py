"""A short run of `psph fuzz links`, and whether it would see what it looks for."""

import json

import pytest

from gateway.cli.main import main
from psirp_stack.sealing.session import FrameWindow, ReceivingKey
from trials.fuzz.links import FuzzedLinks
from trials.fuzz.node import fuzz_from

FRAMES = 3_000


def test_nothing_gets_through_and_everything_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "links", "--frames", str(FRAMES), "--seed", "3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"]
    in_use, alone = report["reasons"]["in use"], report["reasons"]["alone"]
    for reason in ("changed, or sealed by somebody else", "seen before, or too late to tell", "offer of another time"):
        assert in_use.get(f"dropped: {reason}"), reason
    assert alone.get("dropped: offer whose confirmation is wrong"), "offers reach the depth of the handshake"
    assert "opened" not in in_use


def test_the_run_sees_a_window_that_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FrameWindow, "is_new", lambda *_: True)
    monkeypatch.setattr(ReceivingKey, "open_in_order", lambda *_: None)
    links = FuzzedLinks(3)
    report = fuzz_from(links.hostile(), links.targets(), FRAMES, 3)
    assert any("got through" in failure.error for failure in report.failures)


def test_the_run_sees_a_confirmation_that_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psirp_stack.sealing.handshake.hmac.compare_digest", lambda *_: True)
    links = FuzzedLinks(3)
    report = fuzz_from(links.hostile(), links.targets(), FRAMES, 3)
    assert any("made a session" in failure.error for failure in report.failures)
