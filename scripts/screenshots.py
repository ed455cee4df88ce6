"""Pictures of the page at /ui/ of a running server, light and dark, under a small load.

    scripts/screenshots.py URL FOLDER

Needs Chromium and the project's `dev` extra. Writes ui-light.png and ui-dark.png.
"""

import json
import random
import shutil
import sys
import threading
import time
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Literal
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from PIL import Image
from playwright.sync_api import Page, sync_playwright

CLIENTS = 4
LOADED_S = 200.0
ASKED_S = 30.0  # before its end
WORDS = [
    "relay",
    "baton",
    "runner",
    "lane",
    "track",
    "start",
    "pace",
    "curve",
    "sprint",
    "team",
    "hand",
    "race",
]
COLOURS = 255  # of a picture


def load(url: str, until: float, seed: int) -> None:
    """One client, who asks and reads, and thinks for a moment."""
    draw = random.Random(seed)
    while time.monotonic() < until:
        prompt = " ".join(draw.choices(WORDS, k=draw.choice((20, 60, 120, 240))))
        body = {"prompt": prompt, "max_tokens": draw.randint(20, 90), "ignore_eos": True}
        headers = {"content-type": "application/json"}
        asked = Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
        with suppress(HTTPError), urlopen(asked) as answer:  # it may be refused
            answer.read()
        time.sleep(draw.uniform(0.1, 1.5))


def ask(page: Page) -> None:
    """Use the playground, and leave its answer in sight."""
    page.get_by_role("textbox", name="Message").fill("What is a relay race?")
    page.get_by_role("spinbutton", name="Tokens").fill("64")
    page.get_by_role("spinbutton", name="Temperature").fill("0")
    page.get_by_role("button", name="Send").click()
    page.locator("#path").get_by_text("ended: ").wait_for(timeout=120_000)


def take(page: Page, path: Path) -> None:
    """The whole page, in few colours."""
    shot = Image.open(BytesIO(page.screenshot(full_page=True))).convert("RGB")
    few = shot.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def main(url: str, folder: Path) -> int:
    until = time.monotonic() + LOADED_S
    clients = [threading.Thread(target=load, args=(url, until, n)) for n in range(CLIENTS)]
    for client in clients:
        client.start()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.goto(f"{url}/ui/")
        time.sleep(max(0.0, until - time.monotonic() - ASKED_S))
        ask(page)
        schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
        for scheme in schemes:
            page.emulate_media(color_scheme=scheme)
            page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
            page.wait_for_timeout(1500)
            take(page, folder / f"ui-{scheme}.png")
        browser.close()
    for client in clients:
        client.join()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1].rstrip("/"), Path(sys.argv[2])))
