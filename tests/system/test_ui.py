"""The page at /ui/ in a real browser, over a real server whose worker is killed."""

import re
import shutil
from collections.abc import Iterator
from os import kill
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING

import pytest

from tests.servers import RunningServer, serving
from tests.system.streams import SMALL

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
KEY = "key-of-the-page-4715"
PATIENCE_MS = 120_000.0  # of a machine that does much else
# WCAG's ratio of two colours' luminances, of text and of what is behind it.
CONTRAST = """([selector, behind]) => {
  const light = (text) => {
    const [r, g, b] = text.match(/[0-9.]+/g).slice(0, 3).map((c) => c / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const a = light(getComputedStyle(document.querySelector(selector)).color);
  const b = light(getComputedStyle(document.querySelector(behind)).backgroundColor);
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}"""

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed"),
]


@pytest.fixture(scope="module")
def guarded(default_model: Path) -> Iterator[RunningServer]:
    flags = ("--disaggregate", "always", "--api-key", KEY, "--slo-ttft", "60000")
    with serving(default_model, *SMALL, *flags) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def page(browser: "Browser", guarded: RunningServer) -> "Iterator[Page]":
    """At /ui/ with the key given. Nothing else than the server may be asked, nothing may go wrong
    but what the test provokes: a key that is missing, or wrong, too many tokens, a network that is
    cut."""
    context = browser.new_context(viewport={"width": 1360, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE_MS)
    asked: list[str] = []
    errors: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    opened.goto(f"{guarded.url}/ui")
    opened.get_by_label("This server asks for an API key.").fill(KEY)
    opened.get_by_role("button", name="Use it").click()
    opened.locator("#state[data-state=ready]").wait_for()
    yield opened
    context.close()
    assert all(url.startswith(guarded.url) for url in asked), asked
    provoked = re.compile(r"status of 40[01]|ERR_INTERNET_DISCONNECTED")
    assert [error for error in errors if not provoked.search(error)] == []


def answer(page: "Page") -> str:
    return page.get_by_label("Answer", exact=True).inner_text()


def test_an_answer_is_streamed_and_its_way_is_shown(page: "Page") -> None:
    page.get_by_role("textbox", name="Message").fill("Count to five.")
    page.get_by_role("spinbutton", name="Tokens").fill("12")
    page.get_by_role("button", name="Send").click()
    page.locator("#path").get_by_text("ended: ").wait_for()
    assert answer(page).strip()
    stages = page.locator("#path li").all_inner_texts()
    assert [stage.split()[0] for stage in stages] == ["queue", "prefill", "transfer", "decode"]
    assert "at prefill-0" in stages[1]
    assert "at decode-0" in stages[3]
    figures = page.locator("#own b").all_inner_texts()
    assert re.fullmatch(r"[0-9.]+ m?s", figures[0])
    assert 1 < int(figures[2]) <= 12
    own = page.locator("#requests tr.mine")
    assert own.locator(".path").inner_text() == "prefill-0 → decode-0"
    assert own.locator(".lane rect").count() >= 3
    own.hover()
    tip = page.get_by_role("tooltip")
    assert "prefill-0" in tip.inner_text()
    assert "Count to five" not in page.locator("#requests").inner_text()


def test_a_completion_is_continued(page: "Page") -> None:
    page.get_by_role("radio", name="completion").check()
    page.get_by_role("textbox", name="Prompt").fill("One, two, three, four,")
    page.get_by_role("spinbutton", name="Tokens").fill("4")
    page.get_by_role("spinbutton", name="Temperature").fill("0")
    page.get_by_role("button", name="Send").click()
    page.locator("#path").get_by_text("ended: length").wait_for()
    assert answer(page).startswith(" five")


def test_a_long_answer_is_stopped(page: "Page") -> None:
    page.get_by_role("radio", name="completion").check()
    page.get_by_role("textbox", name="Prompt").fill("Once upon a time")
    page.get_by_role("spinbutton", name="Tokens").fill("900")
    page.get_by_role("button", name="Send").click()
    page.locator("#text", has_text=re.compile(r"\w\w")).wait_for()
    page.get_by_role("button", name="Stop").click()
    page.locator("#path").get_by_text("ended: aborted").wait_for()
    assert "(stopped)" in answer(page)


def test_what_is_wrong_is_said(page: "Page") -> None:
    page.get_by_role("spinbutton", name="Tokens").fill("99999")
    page.get_by_role("button", name="Send").click()
    page.locator("#text .bad").wait_for()
    assert "maximum context length" in answer(page)


def test_a_killed_worker_is_seen_to_go_and_to_come_back(
    page: "Page", guarded: RunningServer
) -> None:
    row = page.locator("#workers tr[data-worker=decode-0]")
    row.locator(".pill[data-state=up]").wait_for()
    restarts = int(row.locator(".restarts").inner_text())
    kill(guarded.workers("decode")[0], SIGKILL)
    row.locator(".pill[data-state=restarting], .pill[data-state=starting]").wait_for()
    page.locator("#state[data-state=short]").wait_for()
    row.focus()
    page.get_by_role("tooltip").get_by_text("signal 9").wait_for()
    row.locator(".pill[data-state=up]").wait_for()
    assert int(row.locator(".restarts").inner_text()) == restarts + 1
    page.locator("#state[data-state=ready]").wait_for()


def test_all_of_it_is_reached_by_keyboard(page: "Page") -> None:
    page.reload()  # from the top: the key's form has had the focus
    page.locator("#state[data-state=ready]").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the playground"
    page.keyboard.press("Enter")
    for _ in range(3):  # past the endpoint and the system prompt
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "prompt"
    page.keyboard.press("Control+A")
    page.keyboard.type("Say yes.")
    page.keyboard.press("Tab")
    page.keyboard.press("Control+A")
    page.keyboard.type("3")
    page.keyboard.press("Control+Enter")
    page.locator("#path").get_by_text("ended: ").wait_for()
    assert answer(page).strip()
    reached: list[str] = []
    page.locator("#plots canvas").first.focus()
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.closest('section')?.querySelector('h2').id")
        )
    assert {"workers-title", "requests-title", "playground-title"} <= set(reached)
    rows = page.locator("#requests tbody tr")
    if rows.count() > 1:
        rows.first.focus()
        page.keyboard.press("ArrowDown")
        second = rows.nth(1).get_attribute("data-request")
        assert page.evaluate("document.activeElement.dataset.request") == second
        assert page.get_by_role("tooltip").is_visible()
    unnamed = page.evaluate(
        "[...document.querySelectorAll('input, textarea, button, canvas')].filter((e) =>"
        " !(e.labels?.length || e.textContent.trim() || e.getAttribute('aria-label'))).length"
    )
    assert unnamed == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_light_and_dark(page: "Page", scheme: "str") -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    behind = page.evaluate("getComputedStyle(document.querySelector('section')).backgroundColor")
    dark = sum(map(float, re.findall(r"[0-9.]+", behind)[:3])) < 3 * 128
    assert dark is (scheme == "dark")
    pairs = [
        ("body", "section"),
        (".muted", "section"),
        (".figure dt", "section"),
        (".pill[data-state=up]", "section"),
        ("#send", "#send"),
        ("header a", "header"),
    ]
    for text, under in pairs:
        assert page.evaluate(CONTRAST, [text, under]) >= 4.5, (text, under)


@pytest.mark.parametrize("width", [1360, 1000, 800, 400])
def test_nothing_is_cut_on_a_narrow_page(page: "Page", width: int) -> None:
    page.get_by_role("spinbutton", name="Tokens").fill("3")
    page.get_by_role("button", name="Send").click()
    page.locator("#path").get_by_text("ended: ").wait_for()
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_timeout(1500)  # timelines are drawn anew once a second
    outside = page.evaluate(
        "[...document.querySelectorAll('main *, header *')]"
        ".filter((e) => e.getBoundingClientRect().right > innerWidth).map((e) => e.outerHTML)"
    )
    assert outside == []
    row = page.locator("#workers tr[data-worker=decode-0]")
    heading = "getComputedStyle(document.querySelector('#workers td.step'), '::before').content"
    assert page.evaluate(heading) == ("none" if width > 1060 else '"step ms"')
    assert row.get_by_role("cell").count() == 12
    assert page.get_by_role("columnheader").count() >= 13


def test_a_server_that_is_gone_is_said_to_be_and_comes_back(page: "Page") -> None:
    page.context.set_offline(True)
    banner = page.get_by_role("alert")
    banner.get_by_text("The server does not answer.").wait_for()
    assert "What is shown is of" in banner.inner_text()
    page.locator("#state[data-state=gone]").wait_for()
    page.context.set_offline(False)
    page.locator("#state[data-state=ready]").wait_for()
    assert banner.is_hidden()


def test_a_wrong_key_is_asked_for_again(page: "Page") -> None:
    page.evaluate("sessionStorage.setItem('baton-api-key', 'wrong')")
    page.reload()
    page.get_by_role("alert").get_by_text("none of this server's").wait_for()
    field = page.get_by_label("This server asks for an API key.")
    assert field.evaluate("(e) => e === document.activeElement")
    field.fill(KEY)
    field.press("Enter")
    page.locator("#state[data-state=ready]").wait_for()
    assert page.get_by_role("alert").is_hidden()


def test_the_description_is_shown_without_a_key(browser: "Browser", guarded: RunningServer) -> None:
    opened = browser.new_page()
    opened.set_default_timeout(PATIENCE_MS)
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    opened.goto(f"{guarded.url}/docs")
    opened.get_by_role("link", name="/v1/chat/completions", exact=True).click()
    opened.get_by_role("heading", name="Request body").wait_for()
    assert "Unable to render" not in opened.locator("#ui").inner_text()
    assert errors == []
    opened.close()
