"""Draw the pictures of the README: a result folder's page in headless Chromium, light and dark.

    python docs/images/make_screenshot.py [RESULT_FOLDER]

Without a folder it draws the demo's report (out/demo/report), and where that is missing a made-up result.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.reporting import browser  # noqa: E402
from tests.reporting.synthetic import Fault, write_result  # noqa: E402

from trueup.reporting import write_reports  # noqa: E402

IMAGES = Path(__file__).resolve().parent
WIDTH, HEIGHT = 1440, 1000


def main() -> None:
    """Write report-light.png, report-dark.png and report-records.png beside this file."""
    lacking = browser.missing()
    if lacking:
        sys.exit(lacking)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "out" / "demo" / "report"
        if not (folder / "result.json").is_file():
            folder = write_result(Path(scratch) / "result", layers=8, fault=Fault(layer=3))
        page = write_reports(folder, output=Path(scratch), formats={"html"})["html"]
        with browser.Browser(width=WIDTH, height=HEIGHT) as chromium:
            for scheme in ("light", "dark"):
                chromium.prefer(scheme)
                chromium.open(page)
                print(chromium.screenshot(IMAGES / f"report-{scheme}.png"))
            chromium.prefer("light")
            chromium.open(page)
            chromium.do("document.documentElement.style.scrollBehavior = 'auto'")
            chromium.click('a[href^="#site="]')
            chromium.wait("!document.getElementById('detail').hidden")
            time.sleep(0.5)
            print(chromium.screenshot(IMAGES / "report-records.png"))


if __name__ == "__main__":
    main()
