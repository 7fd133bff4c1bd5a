"""The page in headless Chromium: its numbers are read back and compared with the trace."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from nsd import events
from nsd.trace.schema import Trace
from nsd.trace.view import page
from tests.trace.world import decode

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1240,1000",
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="needs chromium and chromedriver (Debian: chromium, chromium-driver)"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.binary_location = str(CHROMIUM)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def shown(browser: webdriver.Chrome, traces: dict[str, Trace], tmp_path: Path) -> Trace:
    """The capped trace, open in the browser."""
    trace = traces["capped"]
    (tmp_path / "page.html").write_text(page(trace), encoding="utf-8")
    browser.get((tmp_path / "page.html").as_uri())
    return trace


def entries(trace: Trace) -> list[tuple[int, events.Tested | events.Drawn]]:
    """Tokens in the order of the page, with their request."""
    found: list[tuple[int, events.Tested | events.Drawn]] = []
    for info in trace.header.requests:
        for block in trace.of(info.request):
            found += [(info.request, t) for t in block.tested]
            found += [(info.request, block.drawn)] if block.drawn else []
    return found


READ = 'return [...document.querySelectorAll("#values dd")].map(cell => [cell.dataset.field, cell.innerText])'


def panel(browser: webdriver.Chrome) -> dict[str, str]:
    """What the panel shows, as text."""
    return dict(browser.execute_script(READ))  # type: ignore[no-untyped-call]


def agrees(text: str, value: Any) -> bool:
    if value is None:
        return text == "not computed"
    return abs(float(text) - value) <= 1e-5 * max(abs(value), 1e-12)


@needs_browser
def test_numbers_on_the_page_are_the_traces(browser: webdriver.Chrome, shown: Trace) -> None:
    tokens = browser.find_elements(By.CSS_SELECTOR, ".text .tok")
    wanted = entries(shown)
    assert len(tokens) == len(wanted)
    spent = {info.request: 0.0 for info in shown.header.requests}
    product = dict.fromkeys(spent, 1.0)
    for token, (request, entry) in zip(tokens, wanted, strict=True):
        assert entry.origin.value in str(token.get_attribute("class")).split()
        token.click()
        values = panel(browser)
        if isinstance(entry, events.Tested):
            spent[request] += entry.eps or 0.0
            product[request] *= 1 - (entry.eps or 0.0)
            names = ("p", "q", "u", "rank", "mass", "R", "ES", "lam", "eps", "weight_factor", "entropy_p", "entropy_q")
            assert values["member"] == ("yes" if entry.member else "no")
        else:
            names = ("p", "u", "mass", "weight", "below")
        for name in names:
            assert agrees(values[name], getattr(entry, name)), (name, values[name], entry)
        assert agrees(values["ledger-spent"], spent[request])
        assert agrees(values["ledger-Q"], product[request])
        where = browser.find_element(By.ID, "where").text
        assert where.startswith(f"position {entry.position} · ")
        assert where.endswith(f"id {entry.token}")


@needs_browser
def test_text_states_blocks_and_counts(browser: webdriver.Chrome, shown: Trace) -> None:
    for info, box in zip(shown.header.requests, browser.find_elements(By.CSS_SELECTOR, ".text"), strict=True):
        kept = [t.get_property("textContent") for t in box.find_elements(By.CSS_SELECTOR, ".tok:not(.rejected)")]
        assert "".join(map(str, kept)) == "".join(block.text for block in shown.of(info.request))
        struck = [t.get_property("textContent") for t in box.find_elements(By.CSS_SELECTOR, ".tok.rejected")]
        rejected = [
            block.rejected_text.replace("\n", "")
            for block in shown.of(info.request)
            if any(t.origin == "rejected" for t in block.tested)
        ]
        assert struck == rejected
        edges = [edge.text for edge in box.find_elements(By.CSS_SELECTOR, ".edge")]
        assert edges == [str(block.number) for block in shown.of(info.request)]
    counts = Counter(entry.origin.value for _, entry in entries(shown))
    for cell in browser.find_elements(By.CSS_SELECTOR, "[data-count]"):
        assert int(cell.text) == counts[str(cell.get_attribute("data-count"))]
    line = browser.find_element(By.CSS_SELECTOR, ".tok.rejected").value_of_css_property("text-decoration-line")
    assert line == "line-through"
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]


@needs_browser
def test_the_keyboard_reaches_every_token(browser: webdriver.Chrome, shown: Trace) -> None:
    wanted = entries(shown)
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    for _ in range(20):
        if browser.switch_to.active_element.get_attribute("role") == "option":
            break
        browser.switch_to.active_element.send_keys(Keys.TAB)
    assert browser.switch_to.active_element.get_attribute("data-i") == "0"

    def press(key: str) -> int:
        browser.switch_to.active_element.send_keys(key)
        return int(str(browser.switch_to.active_element.get_attribute("data-i")))

    assert press(Keys.ARROW_RIGHT) == 1
    assert agrees(panel(browser)["p"], wanted[1][1].p)
    assert press(Keys.ARROW_LEFT) == 0
    assert press(Keys.END) == len(wanted) - 1
    assert press(Keys.HOME) == 0
    first_of_block_two = len(shown.of(0)[0].tested) + 1
    assert press(Keys.ARROW_DOWN) == first_of_block_two
    assert press(Keys.ARROW_UP) == 0
    rescued = next(i for i, (_, entry) in enumerate(wanted) if entry.origin == "rescued")
    assert press("n") == rescued
    label = str(browser.switch_to.active_element.get_attribute("aria-label"))
    assert "kept only by the set" in label
    assert f"p {wanted[rescued][1].p:.4g}" in label
    assert browser.switch_to.active_element.get_attribute("aria-selected") == "true"


@needs_browser
def test_themes_and_the_legend(browser: webdriver.Chrome, shown: Trace) -> None:
    def background() -> str:
        return str(browser.find_element(By.TAG_NAME, "body").value_of_css_property("background-color"))

    light = background()
    switch = browser.find_element(By.ID, "theme")
    switch.click()
    assert background() == light
    switch.click()
    assert background() != light
    dark = background()
    switch.click()
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    assert background() == dark
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    assert background() == "rgba(255, 255, 255, 1)"
    assert not browser.find_element(By.TAG_NAME, "aside").is_displayed()
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    key = browser.find_element(By.CSS_SELECTOR, '.key[data-state="bonus"]')
    key.click()
    assert key.get_attribute("aria-pressed") == "true"
    assert len(browser.find_elements(By.CSS_SELECTOR, ".text .tok.shown")) == sum(
        entry.origin == "bonus" for _, entry in entries(shown)
    )


class Outside(HTMLParser):
    """Collects what a page would load, and the elements that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.elements: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self.loads += [f"{tag} {name}={value}" for name, value in attrs if name in ("src", "href", "srcset", "data")]
        self.loads += [f"{tag} {name}" for name, _ in attrs if name.startswith("on")]


def test_the_page_is_self_contained_and_escapes_all_text(tmp_path: Path) -> None:
    from dataclasses import replace

    from nsd.trace.read import read_trace

    evil = "</script><img src=x onerror=alert(1)>&lt;\"'{{data}}\u2028"
    run = decode("nsd", seed=12, requests=1)
    info = replace(run.header.requests[0], prompt=evil)
    run.header = replace(run.header, target=evil, drafter=evil, requests=(info,))
    run.blocks = [
        replace(block, rejected_text=evil, committed=tuple(replace(c, text=evil) for c in block.committed))
        for block in run.blocks
    ]
    text = page(read_trace(run.record(tmp_path / "t.jsonl")))
    seen = Outside()
    seen.feed(text)
    assert seen.loads == []
    assert seen.elements["img"] == 0
    assert seen.elements["script"] == 2
    assert not re.search(r"url\(|@import|https?://", text)
    assert "default-src 'none'" in text


def test_an_unfinished_trace_has_a_page_too(files: dict[str, Path]) -> None:
    from nsd.trace.read import parse

    data = b"".join(files["nsd"].read_bytes().splitlines(keepends=True)[:4])
    assert "Recording was interrupted" in page(parse(data))
