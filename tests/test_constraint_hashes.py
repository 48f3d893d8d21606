"""`.ci/constraint-hashes` asks the index that pip is configured with, and no other."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "constraint-hashes"
WHEEL, SOURCE, OTHER = ("1" * 64, "2" * 64, "3" * 64)


def index(folder: Path) -> Path:
    page = folder / "simple" / "a-thing" / "index.html"
    page.parent.mkdir(parents=True)
    files = {"a_thing-1.0-py3-none-win32.whl": WHEEL, "a.thing-1.0.tar.gz": SOURCE, "a_thing-1.0.1.tar.gz": OTHER}
    links = "".join(f'<a href="{name}#sha256={digest}">{name}</a>' for name, digest in files.items())
    page.write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    return folder / "simple"


def run(folder: Path, pins: str, **settings: str) -> subprocess.CompletedProcess[str]:
    (folder / "constraints.txt").write_text(f"# versions\n{pins}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment |= {"PIP_CONFIG_FILE": os.devnull, **settings}
    command = [sys.executable, str(SCRIPT), str(folder)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_index_of_pips_configuration_is_asked_for_what_is_new(tmp_path: Path) -> None:
    known = "known==2 \\\n    --hash=sha256:" + "4" * 64 + "\n"
    (tmp_path / "constraints-hashes.txt").write_text(known)
    done = run(tmp_path, "A-Thing==1.0\nknown==2\n", PIP_INDEX_URL=index(tmp_path).as_uri())
    assert done.returncode == 0, done.stderr
    written = (tmp_path / "constraints-hashes.txt").read_text()
    assert written.endswith(f"A-Thing==1.0 \\\n    --hash=sha256:{WHEEL} \\\n    --hash=sha256:{SOURCE}\n{known}")
    shutil.rmtree(tmp_path / "simple")
    # Nothing is new, so no index is needed.
    assert run(tmp_path, "A-Thing==1.0\nknown==2\n", PIP_NO_INDEX="1").returncode == 0


@pytest.mark.parametrize(
    ("pin", "settings", "said"),
    [
        ("a-thing==9", {}, "a-thing==9: file://"),
        ("other==1", {}, "has no files of this release"),
        ("a-thing==1.0", {"PIP_NO_INDEX": "1"}, "use no index"),
    ],
)
def test_what_no_index_has_is_told_and_changes_nothing(
    tmp_path: Path, pin: str, settings: dict[str, str], said: str
) -> None:
    done = run(tmp_path, f"{pin}\n", PIP_INDEX_URL=index(tmp_path).as_uri(), **settings)
    assert done.returncode == 1
    assert said in done.stderr
    assert not (tmp_path / "constraints-hashes.txt").exists()
