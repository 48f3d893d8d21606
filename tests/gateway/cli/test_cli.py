import io
import json
import subprocess
import sys

import pytest

from gateway import __version__
from gateway.cli import main as dispatcher
from gateway.cli.main import COMMANDS, TRIALS, installed, main

SAMPLE = "http://rss.dit.upm.es/datagisai_feedstest"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS | TRIALS)


@pytest.mark.parametrize("name", sorted(installed()))
def test_every_command_loads_and_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    assert "example" in capsys.readouterr().out


def test_commands_of_the_trials_come_with_a_checkout_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert installed() == COMMANDS | TRIALS
    monkeypatch.setattr(dispatcher, "find_spec", lambda _: None)
    assert "\n  crash" not in dispatcher.overview()
    assert main(["crash", "hub"]) == 2
    captured = capsys.readouterr()
    assert captured.err == "psph crash: is for work on psph itself: run it in a checkout (make test sets one up)\n"
    assert not captured.out


def test_unknown_commands_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["nonsense"])
    assert caught.value.code == 2
    assert "nonsense" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"psph {__version__}\n"


def test_id_prints_canonical_form_and_ids(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["id", "HTTP://RSS.dit.upm.es:80/datagisai_feedstest#now"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == SAMPLE
    assert lines[1].split() == ["scheme", "fqdn-path", "(sha1)"]
    assert lines[2].split() == ["Sid", "::5a910861145757d9d2971e73f7d75863d563c968"]
    assert lines[3].split() == ["Rid", "::df262e3a401c37a2e43f3627653cd71c8dd8fbf5"]
    assert lines[4].split()[0] == "signalling"
    ids = f"item:{lines[2].split()[1]}/{lines[3].split()[1]}"
    others = [SAMPLE.replace("http:", "https:"), "datagisai_feedstest@rss.dit.upm.es", ids]
    assert [line.split() for line in lines[5:]] == [["also", spelling] for spelling in others]
    for spelling in others:
        assert main(["id", spelling]) == 0
        assert capsys.readouterr().out.splitlines()[2:4] == lines[2:4]


def test_id_goes_on_after_a_bad_url(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["id", "--json", "ftp://x/", SAMPLE, "http://[/", "http://localhost/a"]) == 2
    captured = capsys.readouterr()
    printed = [json.loads(line) for line in captured.out.splitlines()]
    assert [entry["canonical"] for entry in printed] == [SAMPLE, "http://localhost/a"]
    assert printed[0]["signalling_sid"].startswith("::")
    assert printed[1]["signalling_sid"] is None
    errors = captured.err.splitlines()
    assert len(errors) == 2
    assert errors[0].startswith("psph id: ftp://x/: ")


def test_id_reads_urls_from_stdin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{SAMPLE}\n\n  http://news.feedspsirp.com/a  \n"))
    assert main(["id", "--scheme", "zone", "--hash", "sha256", "--json"]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(entry["scheme"], entry["hash"]) for entry in printed] == [("zone", "sha256")] * 2
    assert len(printed[0]["sid"]) == 64


def test_id_accepts_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["id", "--json", "Alice@Psirpnetwork.com"]) == 0
    assert json.loads(capsys.readouterr().out)["canonical"] == "alice@psirpnetwork.com"


def test_a_light_command_imports_no_heavy_library() -> None:
    code = (
        "import sys; from gateway.cli.main import main; main(['id', 'http://example.com/']);"
        "heavy = {'pyspark', 'scapy', 'aiohttp', 'matplotlib', 'pyarrow', 'rich'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_reader_that_goes_away_is_no_error() -> None:
    urls = "\n".join(f"http://example.com/{number}" for number in range(5_000))
    command = f"{sys.executable} -m gateway.cli.main id | head -n 1; echo ${{PIPESTATUS[0]}}"
    finished = subprocess.run(["bash", "-c", command], input=urls, capture_output=True, text=True, check=True)
    assert finished.stdout.splitlines() == ["http://example.com/0", "0"]
    assert finished.stderr == ""


def test_a_command_error_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.StringIO()
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    monkeypatch.setattr(dispatcher.sys, "stdin", stdin)
    assert main(["id"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_hub_starts_without_what_only_gateways_need() -> None:
    code = "import sys; from gateway.cli.main import load; load('hub'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "push_hub.hub" in loaded
    assert not {one.partition(".")[0] for one in loaded} & {"psirp_stack", "perf", "prometheus_client"}
    assert "gateway.admin.server" not in loaded
