"""The console in a real browser, before a real server whose ports are for everyone."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import redis
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver

from tests.support.console.browser import (
    chromium,
    prefer,
    resize,
    table_of,
    text_of,
    wait,
)
from tollgate.journal.decision_record import decode_chunk
from tollgate.journal.stream_entries import CHUNK_FIELD, stream_key
from tollgate.repository.releases.activation import compose_release
from tollgate.repository.releases.release_file import read_release, write_release
from tollgate.repository.releases.release_history import Entry, add_entry
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.server.processes.redis_server import EmbeddedRedis
from tollgate.server.triton import control
from tollgate.supervisor.fault_log import Fault, FaultLog
from tollgate.testing.supervised import Supervised
from tollgate_client import Client

pytestmark = [pytest.mark.slow, pytest.mark.system("chromium", "chromedriver")]

CHECKOUT = Path(__file__).parents[2]
ROWS = 96
WORDS = ("approve", "review", "decline")
MARKUP = "<script>window.ran = 1</script><b>bold</b>"


class Place(msgspec.Struct, frozen=True):
    """A server with two products, its store, and the address of its console."""

    server: Supervised
    store: EmbeddedRedis
    repository: Path
    console: str

    @property
    def root(self) -> str:
        """The address of the admin port."""
        return self.console.removesuffix("/console")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """`tollgate serve` on all addresses, so that the console needs the admin secret."""
    folder = tmp_path_factory.mktemp("console")
    repository = folder / "models"
    shutil.copytree(CHECKOUT / "model_repository", repository)
    with EmbeddedRedis(folder / "store") as store:
        words = ("serve", "--host=0.0.0.0", f"--store-url={store.url}")
        words += ("--product=fraud", "--product=credit")
        server = Supervised(repository, folder / "state", words=words)
        try:
            server.wait(lambda: bool(server.health_url) and server.ready())
            console = server.health_url.replace("0.0.0.0", "127.0.0.1") + "/console"
            yield Place(server, store, repository, console)
        finally:
            server.stop()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    """One browser for all tests."""
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def page(place: Place, browser: WebDriver) -> WebDriver:
    """The page after a sign-in, with figures, 1280 pixels wide and light."""
    resize(browser, 1280)
    prefer(browser, "light")
    browser.get(place.console)
    if browser.find_elements(By.ID, "secret"):
        send_secret(browser, place.server.address.admin_secret)
    wait(lambda: "old" in text_of(browser, "#age"))
    return browser


@pytest.fixture(scope="module")
def decided(place: Place) -> dict[str, str]:
    """Decisions of purchases from cents to thousands, by transaction."""
    now_us = time.time_ns() // 1000
    rows = [
        {
            "transaction_id": f"t-{number}",
            "customer_id": f"c-{number % 7}",
            "terminal_id": f"m-{number % 5}",
            "amount": 0.5 + number**2 // 3,
            "event_time": now_us,
        }
        for number in range(ROWS)
    ]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    url = place.server.grpc_url.replace("0.0.0.0", "127.0.0.1")
    with Client(url, timeout_s=60) as client:
        answers = [one for each in client.decide_many(columns) for one in each.decision]
    return dict(zip(columns["transaction_id"], answers, strict=True))


def send_secret(browser: WebDriver, secret: str) -> None:
    """Type a secret and press the button."""
    browser.find_element(By.ID, "secret").send_keys(secret)
    browser.find_element(By.CSS_SELECTOR, "form button").click()


def look_up(page: WebDriver, decision: str) -> str:
    """Ask for a decision, and return the text that the page shows of it."""
    field = page.find_element(By.ID, "decision-id")
    field.clear()
    field.send_keys(decision)
    page.find_element(By.CSS_SELECTOR, "#decision-form button").click()
    wait(
        lambda: (
            text_of(page, "#decision") and "looking" not in text_of(page, "#decision")
        )
    )
    return text_of(page, "#decision")


def journal_counts(place: Place) -> Counter[str]:
    """Count the decisions of the journal's stream by outcome."""
    with redis.Redis.from_url(place.store.url) as client:
        entries = client.xrange(stream_key("fraud"))
    chunks = [fields[CHUNK_FIELD] for _, fields in entries if CHUNK_FIELD in fields]
    levels = [one for each in chunks for one in decode_chunk(each).decision.tolist()]
    return Counter(WORDS[level] for level in levels)


def test_no_figure_is_shown_before_the_secret(place: Place, browser: WebDriver) -> None:
    """A wrong secret is refused in words; the cookie is not for scripts or others."""
    browser.get(place.console)
    browser.delete_all_cookies()
    browser.get(place.console)
    assert not browser.find_elements(By.ID, "products")
    for path in ("/data/overview", "/data/decision?product=fraud&id=t-1"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(place.console + path)
        with refused.value:
            assert refused.value.code == 401
            headers = refused.value.headers
            assert headers["Content-Security-Policy"].startswith("default-src 'self'; ")
            assert headers["X-Frame-Options"] == "DENY"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Referrer-Policy"] == "no-referrer"
    send_secret(browser, "a-secret-of-nobody")
    wait(lambda: text_of(browser, "#problem") == "This is not the secret.")
    assert not browser.get_cookies()
    send_secret(browser, place.server.address.admin_secret)
    wait(lambda: browser.find_elements(By.ID, "products"))
    (cookie,) = browser.get_cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert place.server.address.admin_secret not in cookie["value"]


def test_products_are_listed_with_readiness_and_release(
    place: Place, page: WebDriver
) -> None:
    """As /readyz has them; a click shows the other product."""
    _, body = place.server.get("/readyz")
    products = json.loads(body)["products"]
    tabs = page.find_elements(By.CSS_SELECTOR, "[role=tab]")
    assert [tab.get_attribute("data-product") for tab in tabs] == list(products)
    for tab in tabs:
        tab.click()
        name = tab.get_attribute("data-product")
        release = products[name]["release"]
        wait(lambda release=release: text_of(page, "#tile-release") == release)
        assert text_of(page, "#tile-ready") == "ready"


def test_a_link_to_a_product_shows_its_figures_alone(
    place: Place, page: WebDriver
) -> None:
    """Each point of a chart once; after a change, nothing of the other product."""
    page.get(f"{place.console}#credit")
    page.refresh()
    wait(lambda: text_of(page, "#tile-release").startswith("credit"))
    script = "return points.map((one) => one[0])"
    times = wait(lambda: len(found := page.execute_script(script)) > 1 and found)
    assert times == sorted(set(times))
    wait(lambda: text_of(page, "#tile-failed") == "0.0 %")  # the server's own probes
    script = """
      document.getElementById("tab-0").click();
      return ["#tile-release", "#note-p99", "#table-mix td"].map(
        (one) => document.querySelector(one).textContent)"""
    assert page.execute_script(script) == ["…", "", "loading …"]


def test_the_mix_equals_the_journals_counts(
    place: Place, page: WebDriver, decided: dict[str, str]
) -> None:
    """By the product's words, since the server started."""
    counted = wait(
        lambda: (found := journal_counts(place)).total() == len(decided) and found
    )
    assert counted == Counter(decided.values())
    assert len(counted) > 1

    def shown() -> Counter[str]:
        rows = table_of(page, "#table-mix")
        return +Counter({row[0]: int(row[4].replace(",", "")) for row in rows})

    wait(lambda: len(table_of(page, "#table-mix")) == 3 and shown() == counted)
    assert [row[0] for row in table_of(page, "#table-mix")] == list(WORDS)


def test_an_explanation_equals_the_commands(
    place: Place, page: WebDriver, decided: dict[str, str]
) -> None:
    """Decision, score, record, reasons and every contribution."""
    declined = next(one for one, word in decided.items() if word == "decline")
    text = look_up(page, declined)
    code = "import sys; from tollgate.cli import main; sys.exit(main())"
    options = ["--json", f"--state={place.server.state}", "--product=fraud"]
    options += [f"--repository={place.repository}", f"--journal-url={place.store.url}"]
    done = subprocess.run(
        [sys.executable, "-c", code, "explain", declined, *options],
        capture_output=True,
        check=True,
        cwd=place.repository.parent,
    )
    found = json.loads(done.stdout)
    assert text.startswith(f"decline, score {found['score']:.4f}")
    assert found["record"] in text
    assert [one["text"] for one in found["reasons"]] == [
        one.text for one in page.find_elements(By.CSS_SELECTOR, "#decision li")
    ]
    shown = [(row[0], row[2]) for row in table_of(page, "#decision")]
    assert shown == [
        (one["feature"], f"{one['amount']:+.4f}") for one in found["contributions"]
    ]


def test_an_unknown_id_is_answered_in_words(page: WebDriver) -> None:
    """With the id, and without an explanation."""
    assert look_up(page, "nobody-1").startswith("nobody-1: ")
    assert not page.find_elements(By.CSS_SELECTOR, "#decision table")


def test_a_release_appears_in_the_history(place: Place, page: WebDriver) -> None:
    """Newest first, with person, reason and cards; it answers a moment later."""
    versions = place.repository / "fraud_decision"
    shutil.copytree(versions / "1", versions / "2")
    current = read_release(place.repository, product="fraud")
    release = compose_release(
        RepositorySnapshot(place.repository),
        product="fraud",
        versions={**current.versions, "fraud_decision": 2},
        actor="tester",
        reason="a second policy",
        spec_hash=current.spec_hash,
    )
    add_entry(
        place.repository,
        Entry(
            "activate", release.time, "tester", "a second policy", "fraud-1", release
        ),
    )
    write_release(place.repository, release)
    newest = wait(
        lambda: (
            (rows := table_of(page, "#table-releases"))[0][2] == "fraud-2" and rows[0]
        )
    )
    assert newest[1:5] == ["activate", "fraud-2", "tester", "a second policy"]
    wait(lambda: text_of(page, "#tile-release") == "fraud-2")
    href = page.find_element(By.LINK_TEXT, "card").get_attribute("href")
    page.get(str(href))
    assert "Model card" in page.title


def test_markup_in_data_shows_as_text(place: Place, page: WebDriver) -> None:
    """In ids, names of parts and reasons; no script runs and no element appears."""
    FaultLog(place.server.state).add(
        Fault(
            time="2026-11-24T12:00:00.000000Z",
            part=MARKUP,
            what=f"<img src=x onerror='{MARKUP}'>",
            mended_s=None,
            outcome=MARKUP,
            release="fraud-1",
        )
    )
    wait(
        lambda: (
            MARKUP in [cell for row in table_of(page, "#table-faults") for cell in row]
        )
    )
    assert MARKUP in look_up(page, MARKUP)
    assert page.execute_script("return window.ran") is None
    inside = "#main script, #main img, #main b"
    assert not page.find_elements(By.CSS_SELECTOR, inside)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colors_follow_the_browser_and_have_contrast(
    page: WebDriver, scheme: str
) -> None:
    """At least 4.5 to 1 (WCAG 2, AA), for every text on its own ground."""
    prefer(page, scheme)
    script = """
      const ground = (one) => {
        for (let at = one; at; at = at.parentElement) {
          const found = getComputedStyle(at).backgroundColor;
          if (!found.startsWith("rgba(0, 0, 0, 0")) return found;
        }
      };
      return [...document.querySelectorAll("body *")]
        .filter((one) => one.offsetParent && [...one.childNodes].some(
          (node) => node.nodeType === 3 && node.data.trim()))
        .map((one) => [one.textContent, getComputedStyle(one).color, ground(one)])"""
    found = page.execute_script(script)
    assert len(found) > 50
    low = [(text, contrast(*pair)) for text, *pair in found if contrast(*pair) < 4.5]
    assert low == []
    body = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (luminance(body) < 0.2) == (scheme == "dark")


def luminance(color: str) -> float:
    """Compute the relative luminance of a CSS colour by WCAG's definition."""
    parts = [int(one) / 255 for one in re.findall(r"\d+", color)[:3]]
    linear = [
        one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4
        for one in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Compute the contrast of two colours."""
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_shows_it_without_scrolling_sideways(
    page: WebDriver, width: int
) -> None:
    """Only tables scroll inside their own frame."""
    resize(page, width, height=800)
    script = "scrollTo(1000, 0); return [scrollX, innerWidth]"
    wait(lambda: page.execute_script("return innerWidth") == width)
    assert page.execute_script(script) == [0, width]


def test_the_keyboard_alone_is_enough(page: WebDriver, decided: dict[str, str]) -> None:
    """Skip link, tabs by arrows, a look-up by Enter; the focus always shows."""

    def press(key: str) -> str:
        page.switch_to.active_element.send_keys(key)
        script = """
          const one = document.activeElement, style = getComputedStyle(one);
          return [one.id || one.className, style.outlineStyle, style.outlineWidth]"""
        name, style, width = page.execute_script(script)
        assert (style, width) == ("solid", "2px"), name
        return str(name)

    page.execute_script("document.activeElement.blur()")
    page.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    assert page.switch_to.active_element.get_attribute("class") == "skip"
    assert press(Keys.TAB) == "tab-0"
    assert press(Keys.ARROW_RIGHT) == "tab-1"
    wait(lambda: text_of(page, "#tile-release").startswith("credit"))
    assert press(Keys.ARROW_RIGHT) == "tab-0"
    assert press(Keys.END) == "tab-1"
    assert press(Keys.HOME) == "tab-0"
    wait(lambda: text_of(page, "#tile-release").startswith("fraud"))
    reached = [press(Keys.TAB)]
    while reached[-1] != "decision-id":
        assert len(reached) < 40, reached
        reached.append(press(Keys.TAB))
    page.switch_to.active_element.send_keys(next(iter(decided)), Keys.ENTER)
    wait(lambda: "score" in text_of(page, "#decision"))


def test_a_store_that_is_away_shows_as_a_reason(place: Place, page: WebDriver) -> None:
    """The circuit breaker opens, and rows are degraded; both end with the outage."""
    os.kill(place.store.pid, signal.SIGSTOP)
    try:
        wait(lambda: text_of(page, "#tile-store") == "away")
        reasons = {row[0] for row in table_of(page, "#table-degraded")}
        assert reasons & {"STORE_UNAVAILABLE", "LAST_KNOWN_VECTOR"}
        assert "LOOKUPS_UNREAD" in reasons
    finally:
        os.kill(place.store.pid, signal.SIGCONT)
    wait(lambda: text_of(page, "#tile-store") == "answers")


def test_readiness_is_red_while_a_model_is_missing(
    place: Place, page: WebDriver
) -> None:
    """Of its product alone, with the problem; the supervisor repairs it."""
    address = place.server.address
    control.unload_model(address, "credit")
    wait(lambda: page.find_elements(By.CSS_SELECTOR, "#tab-1.not-ready"))
    page.find_element(By.ID, "tab-1").click()
    wait(lambda: text_of(page, "#tile-ready") == "not ready")
    assert text_of(page, "#note-ready")
    assert page.find_elements(By.CSS_SELECTOR, "#tab-0.ready")


def test_figures_of_a_server_that_is_away_are_marked_as_old(
    place: Place, page: WebDriver
) -> None:
    """The banner says of when they are, until it answers again."""
    os.kill(place.server.process.pid, signal.SIGSTOP)
    try:
        wait(lambda: page.find_elements(By.CSS_SELECTOR, "body.stale"))
        assert re.fullmatch(
            r"The server does not answer; the figures are those of [-\d]+ [:\d]+ UTC\.",
            text_of(page, "#banner"),
        )
        assert text_of(page, "#tile-ready")
    finally:
        os.kill(place.server.process.pid, signal.SIGCONT)
    wait(lambda: not page.find_elements(By.CSS_SELECTOR, "body.stale"))
    assert text_of(page, "#banner") == ""
