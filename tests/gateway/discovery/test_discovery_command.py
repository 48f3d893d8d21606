"""`psph discover` as people call it."""

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from gateway.cli.main import main
from tests.gateway.discovery.name_server import NameServer, free_port, why_not

needs_server = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    server = NameServer.prepare(tmp_path_factory.mktemp("named"))
    server.start()
    yield ["--server", "127.0.0.1", "--port", str(server.port), "--allow-private"]
    server.stop()


@needs_server
def test_it_shows_the_order(where: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["discover", *where, "--seed", "1", "fixed.feeds.test"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "fixed.feeds.test: 3 gateway(s), to be asked again in 30 s"
    assert lines[1].split() == ["try", "priority", "weight", "gateway", "addresses"]
    assert [line.split()[0] for line in lines[2:]] == ["1", "2", "3"]
    assert lines[4].split()[1:] == ["20", "0", "three.feeds.test:4003", "127.0.0.13"]


@needs_server
def test_the_seed_decides_among_equals(where: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def first(seed: int) -> str:
        assert main(["discover", *where, "--json", "--seed", str(seed), "fixed.feeds.test"]) == 0
        return str(json.loads(capsys.readouterr().out)["gateways"][0]["target"])

    assert first(1) == first(1)
    picks = Counter(first(seed) for seed in range(40))
    assert set(picks) == {"one.feeds.test", "two.feeds.test"}
    assert picks["one.feeds.test"] > picks["two.feeds.test"]


@needs_server
def test_json_tells_which_would_not_be_tried(where: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["discover", *where, "--json", "mixed.feeds.test"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["availability"] == "available"
    assert printed["gateways"][0] == {
        "position": 1,
        "target": "alias.feeds.test",
        "port": 4001,
        "priority": 2,
        "weight": 0,
        "addresses": ["127.0.0.12"],
    }
    assert {row["position"] for row in printed["gateways"][1:]} == {None}


@needs_server
def test_none_is_an_answer_with_a_reason(where: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["discover", *where, "none.feeds.test"]) == 1
    assert "the domain says that it has no gateway" in capsys.readouterr().out


def test_no_answer_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["discover", "--server", "127.0.0.1", "--port", str(free_port()), "--timeout", "0.2", "a.test"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("psph discover: no name server ")
    assert len(captured.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["127.0.0.1"], "is an address"),
        (["a b"], "not a domain"),
        (["--server", "ns.test", "a.test"], "expected an IP address"),
        (["--server", "127.0.0.1", "--port", "70000", "a.test"], "65535"),
        (["--port", "5353", "a.test"], "--server"),
        (["--server", "127.0.0.1", "--timeout", "0", "a.test"], "above 0"),
        (["--server", "127.0.0.1", "--timeout", "nan", "a.test"], "above 0"),
    ],
)
def test_a_wrong_request_is_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["discover", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1
