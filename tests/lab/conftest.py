"""Pages in a real browser."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from selenium.webdriver import Chrome

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")


@pytest.fixture
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path, int], None]]:
    """Open a page with so many figures, wide and narrow, light and dark: nothing is cut off, and all can be read."""
    if not (CHROMIUM.exists() and DRIVER.exists()):
        pytest.skip("this machine has no chromium with its driver (apt-get install chromium chromium-driver)")
    if importlib.util.find_spec("selenium") is None:
        pytest.skip("needs selenium")
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    profile = tmp_path_factory.mktemp("chromium")
    options = Options()
    options.binary_location = str(CHROMIUM)
    switches = "headless=new no-sandbox disable-gpu disable-quic no-first-run disable-background-networking"
    for switch in [*switches.split(), "disable-component-update", "disable-sync", f"user-data-dir={profile}"]:
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    try:
        yield lambda page, figures: _look(driver, page, figures)
        assert driver.get_log("browser") == []
    finally:
        driver.quit()
        shutil.rmtree(profile, ignore_errors=True)


def _look(driver: Chrome, page: Path, figures: int) -> None:
    for width, scheme in ((1100, "light"), (390, "light"), (390, "dark")):
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        driver.get(page.as_uri())
        ask = driver.execute_script
        assert ask("return document.documentElement.scrollWidth") <= width
        sizes = ask(
            "return [...document.querySelectorAll('svg')].map(s => {"
            "const box = s.getBoundingClientRect(); return [box.width, box.height]})"
        )
        assert len(sizes) == figures
        assert all(w > 250 and h > 80 for w, h in sizes)
        # the ink of a figure follows the page
        ink = ask("return getComputedStyle(document.querySelector('svg text')).fill")
        assert ink == ask("return getComputedStyle(document.body).color")
        dark = ask("return getComputedStyle(document.body).backgroundColor") != "rgb(252, 252, 250)"
        assert dark == (scheme == "dark")
        # no letter of a figure is cut off
        assert ask(
            "return [...document.querySelectorAll('svg text')].every(t => {"
            "const a = t.getBoundingClientRect(), b = t.closest('svg').getBoundingClientRect();"
            "return a.left >= b.left - 1 && a.right <= b.right + 1})"
        )
        # nor written over another one of its line
        over = ask(
            "return [...document.querySelectorAll('svg')].flatMap(s => {"
            "const told = [...s.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);"
            "return told.flatMap(([x, a], i) => told.slice(i + 1).filter(([y, b]) => Math.abs(a.top - b.top) < 2"
            " && a.right > b.left + 1 && b.right > a.left + 1).map(([y, b]) => x + ' | ' + y))})"
        )
        assert over == []
