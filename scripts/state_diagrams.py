"""Draws the phase tables of both sides as SVG: docs/states-prefill.svg, docs/states-decode.svg.

    python scripts/state_diagrams.py

Phases stand in a column, in the order of their enum; what leads on is drawn to the right, what
leads back to the left. Must know of the tables only that they are `{(phase, event): phase}`.
"""

import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
WIDTH, BOX_W, BOX_H, ROW = 560, 120, 30, 74
LEFT = 150  # of the boxes
COMMON = {"ended": 200, "broken": 90}  # how much further out they are drawn
STYLE = (
    "text{font:13px sans-serif;fill:#333}.box{fill:#dbe9f6;stroke:#0072b2}"
    ".on{fill:none;stroke:#333}.ended{fill:none;stroke:#bbb}.broken{fill:none;stroke:#d55e00}"
    ".what{font-size:12px}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.box{fill:#12344d}.on{stroke:#ddd}"
    ".ended{stroke:#666}}"
)


def drawn(table: Mapping[tuple[StrEnum, StrEnum], StrEnum]) -> str:
    """The SVG. What many phases have in common (`COMMON`) is told by its colour, without a name."""
    phases = list(type(next(iter(table))[0]))
    row = {phase: number for number, phase in enumerate(phases)}
    by_pair: dict[tuple[int, int], list[str]] = {}
    for (before, event), after in table.items():
        by_pair.setdefault((row[before], row[after]), []).append(event.value)
    arrows = [_arrow(a, b, events) for (a, b), events in sorted(by_pair.items())]
    boxes = [_box(number, phase.value) for phase, number in row.items()]
    height = ROW * len(phases)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img">',
            f"<style>{STYLE}</style>",
            '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" '
            'markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="#888"/></marker>',
            *arrows,
            *boxes,
            "</svg>\n",
        ]
    )


def _middle(number: int) -> int:
    return ROW * number + ROW // 2


def _box(number: int, name: str) -> str:
    top, centre = _middle(number) - BOX_H // 2, LEFT + BOX_W // 2
    return (
        f'<rect class="box" x="{LEFT}" y="{top}" width="{BOX_W}" height="{BOX_H}" rx="6"/>'
        f'<text x="{centre}" y="{_middle(number) + 5}" text-anchor="middle">{name}</text>'
    )


def _arrow(before: int, after: int, events: list[str]) -> str:
    common = events[0] if len(events) == 1 and events[0] in COMMON else ""
    look = f'class="{common or "on"}" marker-end="url(#tip)"'
    label = "" if common else ", ".join(events)
    if after == before + 1 and not common:
        x, top, bottom = LEFT + BOX_W // 2, _middle(before) + BOX_H // 2, _middle(after)
        path = f"M{x} {top}V{bottom - BOX_H // 2}"
        return f'<path {look} d="{path}"/>' + _label(x + 6, (top + bottom) // 2 - 3, label)
    back, far = after < before, abs(after - before)
    side = LEFT if back else LEFT + BOX_W
    reach = side - 30 - 12 * far if back else side + 20 + COMMON.get(common, 0) + 16 * far
    y1, y2 = _middle(before) + COMMON.get(common, -40) // 20, _middle(after)
    path = f"M{side} {y1}C{reach} {y1} {reach} {y2} {side} {y2}"
    x = side + (reach - side) * 3 // 4
    text = _label(x + (-4 if back else 4), (y1 + y2) // 2, label, end=back)
    return f'<path {look} d="{path}"/>' + text


def _label(x: int, y: int, text: str, *, end: bool = False) -> str:
    anchor = ' text-anchor="end"' if end else ""
    return f'<text class="what" x="{x}" y="{y}"{anchor}>{text}</text>' if text else ""


def diagrams() -> dict[Path, str]:
    """By file, what must stand there."""
    from decode.state import NEXT as DECODE
    from prefill.state import NEXT as PREFILL

    tables = {"prefill": PREFILL, "decode": DECODE}
    return {HOME / "docs" / f"states-{name}.svg": drawn(table) for name, table in tables.items()}


if __name__ == "__main__":
    sys.path.insert(0, str(HOME))
    for path, text in diagrams().items():
        path.write_text(text)
