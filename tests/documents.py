"""README and the other documents: their links, headings and blocks of code."""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HOME = Path(__file__).parents[1]
PAGES = sorted(
    [*(HOME / "docs").glob("*.md"), *(path for path in HOME.glob("*.md") if path.is_file())]
)
_FENCE = re.compile(
    r"(?:<!-- run: (?P<terminal>[^>]*?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced one."""

    page: Path
    language: str
    text: str
    terminal: str  # where a reader runs it; "": it is only shown

    def __str__(self) -> str:
        return f"{self.page.name}: {self.text.splitlines()[0][:60]}"


def blocks(page: Path) -> list[Block]:
    """In the order of the page."""
    return [
        Block(page, found["language"], found["text"], found["terminal"] or "")
        for found in _FENCE.finditer(page.read_text("utf-8"))
    ]


def prose(page: Path) -> str:
    """Without its blocks."""
    return _FENCE.sub("", page.read_text("utf-8"))


def links(page: Path) -> Iterator[str]:
    """Where they lead, but for those into the web."""
    for target in _LINK.findall(_CODE.sub("", prose(page))):
        if not re.match(r"https?://|mailto:", target):
            yield target


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub and mkdocs name them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+)$", prose(page), re.MULTILINE):
        plain = unicodedata.normalize("NFKD", heading.replace("`", "")).lower()
        found.add(re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip()))
    return found


def code(page: Path) -> Iterator[str]:
    """What stands as code: each span of prose, each line of a block of shell, continued ones as
    one."""
    yield from _CODE.findall(prose(page))
    for block in blocks(page):
        if block.language in ("sh", "bash", ""):
            yield from block.text.replace("\\\n", " ").splitlines()
