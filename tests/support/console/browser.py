"""A headless Chromium for tests, which reaches nothing but the server under test."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.remote.webdriver import WebDriver

PATIENCE_S = 600.0
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextlib.contextmanager
def chromium(folder: Path) -> Iterator[WebDriver]:
    """Start a browser with an empty profile in a folder; ended with the context."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*_FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    service = webdriver.ChromeService(shutil.which("chromedriver") or "")
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()


def resize(driver: WebDriver, width: int, *, height: int = 900) -> None:
    """Give the page a size, in CSS pixels."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def prefer(driver: WebDriver, scheme: str) -> None:
    """Make the browser prefer `dark` or `light`."""
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def wait(condition: Callable[[], Any], *, patience_s: float = PATIENCE_S) -> Any:
    """Wait until a condition holds, and return its value."""
    until = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < until, "the page does not get there"
        time.sleep(0.1)
    return found


def text_of(driver: WebDriver, selector: str) -> str:
    """
    Return the visible text of the first element that a CSS selector finds.

    It is read in one step of the browser, which may be between two pages; empty if
    there is no such element.
    """
    script = "return document.querySelector(arguments[0])?.innerText.trim() ?? ''"
    found: str = driver.execute_script(script, selector)
    return found


def table_of(driver: WebDriver, selector: str) -> list[list[str]]:
    """Return the texts of a table's body, row by row, in one step of the browser."""
    script = """
      return [...document.querySelectorAll(arguments[0] + " tbody tr")].map(
        (row) => [...row.cells].map((cell) => cell.textContent.trim()))"""
    found: list[list[str]] = driver.execute_script(script, selector)
    return found
