"""The page to look around in, in a real browser: filters, order, ways, light and dark; what traces say is text."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from perf.pipeline.analysis import Analysis
from perf.pipeline.tables import DepthRow, PlaceRow, SlowRow
from perf.report.explore import render_explorer
from tests.gateway.browser import browser, why_not

pytestmark = [pytest.mark.skipif(why_not() is not None, reason=str(why_not())), pytest.mark.timeout(240)]
HOSTILE = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 2'>"


def page() -> str:
    places = [
        PlaceRow(run, "gateway", node, domain, 100, p50, None, p50 * 10)
        for run in ("one", "two")
        for node, domain, p50 in (("a", "push", 3.0), ("a", "psirp", 9.0), ("b", "push", 5.0))
    ]
    places.append(PlaceRow("one", "topic", HOSTILE, "push", 7, 1.0, None, 2.0))
    slowest = [
        SlowRow("one", f"p{n}", HOSTILE, "psirp", "a", "1", 10**18, 9.0, 300, 50.0 - n, 0.4, 1, 2, 3, 20.0, 4, 5)
        for n in range(3)
    ]
    depths = [DepthRow("one", "a", "writer", low, low, 10, 1.0 + low, 1.0, None) for low in range(3)]
    analysis = SimpleNamespace(
        inventory=SimpleNamespace(runs=[SimpleNamespace(run="one"), SimpleNamespace(run="two")]),
        places=places, slowest=slowest, queue_depth=depths,
    )  # fmt: skip
    return render_explorer(cast("Analysis", analysis))


async def test_somebody_looks_around(tmp_path: Path) -> None:
    file = tmp_path / "explore.html"
    file.write_text(page(), encoding="utf-8")
    rows = "document.querySelectorAll('tbody tr').length"
    async with browser(tmp_path / "profile") as chromium:
        tab = await chromium.page(file.as_uri())
        await tab.until(f"{rows} === 6")
        await tab.value("(() => { const run = document.getElementById('run'); run.value = 'two'; "
                        "run.dispatchEvent(new Event('input', {bubbles: true})); })()")  # fmt: skip
        await tab.until(f"{rows} === 3")
        await tab.write("#above", "4")
        await tab.until(f"{rows} === 2")
        await tab.write("#words", "psirp")
        await tab.until(f"{rows} === 1")
        assert "9" in await tab.value("document.querySelector('tbody').innerText")
        await tab.value(
            "(() => { for (const id of ['run', 'above', 'words']) document.getElementById(id).value = ''; })()"
        )
        await tab.click("#tabs button:nth-child(1)")
        await tab.click("th:nth-child(5)")  # the medians, the largest first
        await tab.until("document.querySelector('tbody tr td:nth-child(5)').textContent === '9'")
        await tab.click("#tabs button:nth-child(2)")
        await tab.until(f"{rows} === 1")
        assert await tab.value("document.querySelector('tbody td.text:nth-child(2)').textContent") == HOSTILE
        await tab.click("#tabs button:nth-child(4)")
        await tab.until("document.querySelectorAll('.fall').length === 3")
        assert await tab.value("document.querySelectorAll('.fall:first-child .way span').length") == 6
        assert await tab.value("document.querySelector('.fall .key').textContent.includes('carry 20')")
        await tab.click("#tabs button:nth-child(5)")
        await tab.until(f"{rows} === 3")
        before = await tab.value("getComputedStyle(document.body).backgroundColor")
        await tab.click("#theme")
        assert await tab.value("getComputedStyle(document.body).backgroundColor") != before
        assert await tab.value("window.broken === undefined")
        assert not chromium.complaints


def test_nothing_is_loaded_from_elsewhere() -> None:
    text = page()
    assert "default-src 'none'" in text
    assert "http://" not in text.replace(HOSTILE, "")
    assert "https://" not in text
    assert "</script><script>window" not in text
