"""The page in a real browser: Chromium draws it, runs its script, and has nothing to complain about."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hybridrec.train.report import write
from tests.patience import PATIENCE
from tests.train.report.fake_run import write_run

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "chrome-headless-shell")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser to draw the page with: {', '.join(NAMES)}")

ACTIONS = """
<script>
const say = (name, value) => {
  const p = document.createElement("p");
  p.textContent = name + "=" + value;
  document.body.append(p);
};
const button = [...document.querySelectorAll("button")].find((b) => b.textContent === "rows");
const rows = () => [...document.querySelectorAll(".sortable tbody th")];
const names = () => rows().map((th) => th.textContent).slice(0, 2).join("+");
button.click(); say("down", names());
button.click(); say("up", names());
const svg = document.querySelector("svg[data-chart]"), box = svg.getBoundingClientRect();
svg.dispatchEvent(new PointerEvent("pointermove", { clientX: box.right - 8, clientY: box.top + 40 }));
say("tip", document.querySelector(".tip").innerText.replaceAll("\\n", "|"));
svg.dispatchEvent(new PointerEvent("pointerleave"));
say("tips", document.querySelectorAll(".tip").length);
const charts = [...document.querySelectorAll(".chart > svg")];
say("flat", charts.filter((chart) => chart.getBoundingClientRect().height < 50).length);
say("wide", document.documentElement.scrollWidth - document.documentElement.clientWidth);
say("shown", document.body.innerText.includes("Normalised entropy"));
</script>
"""


def browse(page: Path, profile: Path) -> subprocess.CompletedProcess[str]:
    assert BROWSER is not None
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr"]
    options += [f"--user-data-dir={profile}", "--window-size=500,900", "--dump-dom"]
    return subprocess.run(
        [BROWSER, *options, page.resolve().as_uri()], capture_output=True, text=True, timeout=PATIENCE, check=True
    )


@pytest.mark.parametrize("labels", [("click",), ("click", "like")])
def test_a_browser_draws_the_page_sorts_hovers_and_reports_no_error(tmp_path, labels):
    page = write(write_run(tmp_path / "run", labels, records=100))
    page.write_text(page.read_text().replace("</body>", ACTIONS + "</body>"))
    seen = browse(page, tmp_path / "profile")
    assert "CONSOLE" not in seen.stderr
    said = dict(re.findall(r"<p>(\w+)=([^<]*)</p>", seen.stdout))
    assert said.pop("down") == "video_id+music_id"
    assert said.pop("up") == "tab+hour"
    assert re.fullmatch(r"step 5,000\|train [\d.]+\|valid [\d.]+", said.pop("tip"))
    assert said == {"tips": "0", "flat": "0", "wide": "0", "shown": "true"}


def test_the_browser_test_would_see_an_error(tmp_path):
    page = tmp_path / "bad.html"
    page.write_text("<!DOCTYPE html><script>undefined_name()</script>")
    assert "CONSOLE" in browse(page, tmp_path / "profile").stderr
