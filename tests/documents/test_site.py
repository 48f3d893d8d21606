"""The documentation builds as a site, without a warning, and has a reference of what applications call."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents.pages import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    # mkdocs.yml is strict: a link that leads nowhere, or a name that is not there, is an error.
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_every_page_is_in_it(site: Path) -> None:
    pages = {str(page.relative_to(ROOT / "docs").with_suffix(".html")) for page in (ROOT / "docs").rglob("*.md")}
    built = {str(page.relative_to(site)) for page in site.rglob("*.html")}
    assert pages | {"index.html", "CONTRIBUTING.html", "examples.html", "reference.html"} <= built


def test_the_reference_has_what_the_examples_call(site: Path) -> None:
    text = (site / "reference.html").read_text()
    for what in (
        "push_hub.client.Subscriber.subscribe",
        "push_hub.client.publish",
        "push_hub.hub.HubConfig",
        "psirp_stack.node.api.Client.attach",
        "gateway.protocols.descriptor.ProtocolDescriptor",
        "gateway.control.Control.publish",
    ):
        assert f'id="{what}"' in text, what
    assert "Discover the topic of a page and ask its hubs" in text, "its docstring"


def test_a_block_keeps_its_text_whatever_stands_behind_its_language(site: Path) -> None:
    text = (site / "reverse-proxies.html").read_text()
    assert "proxy_set_header X-Forwarded-For" in text
    assert "file=nginx.conf" not in text
