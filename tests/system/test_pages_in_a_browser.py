"""The pages in a real browser, where there is one: accessible, nothing cut off, nothing fetched."""

import html
import importlib.resources
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here")

CHECK = """
axe.run().then(found => {
  const told = document.createElement("pre");
  told.id = "told";
  told.textContent = JSON.stringify({
    violations: found.violations.map(v => [v.impact, v.id, v.nodes.map(n => n.html.slice(0, 200))]),
    width: document.documentElement.scrollWidth,
    fetched: performance.getEntriesByType("resource").length,
    cut: [...document.querySelectorAll("svg text")].filter(text => {
      const inside = text.ownerSVGElement.getBoundingClientRect(), own = text.getBoundingClientRect();
      return own.left < inside.left - 1 || own.right > inside.right + 1 || own.top < inside.top - 1 || own.bottom > inside.bottom + 1;
    }).map(text => text.textContent),
  });
  document.body.appendChild(told);
});
"""


@pytest.mark.parametrize("width", [500, 1280])
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_a_note_can_be_read_by_everybody(tmp_path: Path, scheme: str, width: int) -> None:
    (page,) = EXAMPLES.glob("quickstart-*.html")
    axe = (importlib.resources.files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")
    # The page's own policy forbids scripts, so for this look at it the policy is taken out.
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text(encoding="utf-8"))
    scripts = f"<script>{axe.replace('</script', '<' + chr(92) + '/script')}</script><script>{CHECK}</script></body>"
    looked_at = tmp_path / "page.html"
    looked_at.write_text(text.replace("</body>", scripts), encoding="utf-8")
    command = [
        str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
        f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}", f"--window-size={width},900",
        "--virtual-time-budget=20000", "--dump-dom", looked_at.as_uri(),
    ]  # fmt: skip
    dumped = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r'<pre id="told">(.*?)</pre>', dumped, re.DOTALL)
    assert found, dumped[-2000:]
    told = json.loads(html.unescape(found.group(1)))
    assert told["violations"] == []
    assert told["cut"] == []
    assert told["fetched"] == 0
    assert told["width"] <= width
