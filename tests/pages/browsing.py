"""A headless browser for pages on disk and on localhost."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NEEDED = "LEWEL_NEEDS_BROWSER"  # where it is set, a missing browser fails a test
QUIET = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


def browser_files() -> tuple[str, str]:
    """Chromium and its driver; without them a test is skipped, or fails where one is needed."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        why = "no chromium with chromedriver (Debian: apt-get install chromium chromium-driver)"
        if os.environ.get(NEEDED):
            pytest.fail(why)
        pytest.skip(why)
    return chromium, driver


@contextmanager
def browser(profile: Path) -> Iterator["Any"]:
    """A browser with an empty profile that logs its console."""
    chromium, driver = browser_files()
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = chromium
    for word in (*QUIET, f"--user-data-dir={profile}"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = Chrome(options=options, service=Service(driver))
    try:
        opened.get("about:blank")
        complaints(opened)  # of the browser's own first page
        yield opened
    finally:
        opened.quit()


def show(opened: Any, url: str, width: int = 1280, dark: bool = False) -> None:
    """Open a page as a screen of a certain width would."""
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    opened.get(url)


def complaints(opened: Any) -> list[str]:
    """Console messages since the last call, and requests to other hosts."""
    found = [entry["message"] for entry in opened.get_log("browser")]
    for entry in opened.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            url = message["params"]["request"]["url"]
            if not url.startswith(("file:", "data:", "http://127.0.0.1:")):
                found.append(f"requested {url}")
    return found


def screenshot(opened: Any, path: Path, width: int) -> None:
    """The whole page as a picture."""
    height = opened.execute_script("return document.documentElement.scrollHeight")
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    opened.save_screenshot(str(path))
