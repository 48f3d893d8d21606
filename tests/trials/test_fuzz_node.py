"""Short runs of the fuzzers of nodes, attachments and the control plane; nothing may escape."""

import json
import random
from pathlib import Path

import pytest

from gateway.cli.main import main
from trials.fuzz.node import FuzzedNetwork, attachment_seeds, attachment_targets, fuzz_from, spoilt


def test_hostile_frames_at_whole_nodes(tmp_path: Path) -> None:
    network = FuzzedNetwork(tmp_path, 5)
    targets = {name: network.target(name) for name in ("n0", "n1", "n2")} | {"application": network.application()}
    seeds = [*network.seeds, *attachment_seeds() * 2]
    report = fuzz_from(spoilt(seeds, random.Random(5)), targets, 3000, 5)
    network.close()
    assert report.failures == []
    assert report.every_frame_counted
    for name in ("n0", "n1", "n2"):
        assert len(report.reasons[name]) > 4, "frames get further than the first refusal"
        assert report.reasons[name]["taken"]
    assert {"Subscribe", "Publish", "Consumed", "AskExplanation", "refused"} <= report.reasons["application"].keys()


def test_hostile_messages_between_applications_and_nodes() -> None:
    report = fuzz_from(spoilt(attachment_seeds(), random.Random(6)), attachment_targets(), 5000, 6)
    assert report.failures == []
    assert {"refused", "Subscribe", "Publish"} <= report.reasons["requests"].keys()
    assert {"refused", "Done", "ReceivedVersion"} <= report.reasons["answers"].keys()
    assert {"cut off", "waiting"} <= report.reasons["stream"].keys()


@pytest.mark.parametrize("what", ["control", "attachment", "node"])
def test_the_command_runs_every_kind(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", what, "--frames", "300", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["frames"] == 300
    assert document["failed"] == 0
    assert all(sum(reasons.values()) == 300 for reasons in document["reasons"].values())


def test_all_targets_of_a_kind_are_fuzzed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "node", "--frames", "10", "--target", "codec"]) == 2
    assert "always has all" in capsys.readouterr().err


def test_an_exception_of_a_target_is_a_failure() -> None:
    def fragile(data: bytes) -> str:
        return str(data[50])

    report = fuzz_from(spoilt([b"short"], random.Random(1)), {"fragile": fragile}, 50, 1)
    assert report.failed == report.reasons["fragile"]["raised IndexError"] > 0
    assert not report.passed
