"""A drawing of a run: one row a slot and a CPU worker, one bar a trial or metric job. SVG text, no script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Bar", "draw"]

ROW = 22
LABEL = 110
WIDTH = 900
FONT = 'font-family="sans-serif" font-size="11"'
COLOURS = ("#4878a8", "#6a9f58", "#c08440", "#8a6bb0", "#b05a6a", "#4f9a94", "#8c7a4f", "#7288c0")


@dataclass(frozen=True, slots=True)
class Bar:
    """[start, end) seconds from the start of the run, in `row`; `failed` bars are hatched and say so in their title."""

    row: str
    label: str
    start: float
    end: float
    failed: bool = False


def draw(bars: Sequence[Bar], title: str) -> str:
    """An SVG of `bars`, rows in the order of their first appearance; readable without colour: each bar carries its label."""
    rows = list(dict.fromkeys(bar.row for bar in bars))
    names = list(dict.fromkeys(bar.label for bar in bars))
    end = max((bar.end for bar in bars), default=0.0) or 1.0
    height = ROW * (len(rows) + 2)
    scale = (WIDTH - LABEL - 10) / end
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" {FONT}>',
        f"<title>{escape(title)}</title>",
        '<defs><pattern id="failed" width="6" height="6" patternUnits="userSpaceOnUse">',
        '<path d="M0 6L6 0" stroke="#a11" stroke-width="2"/></pattern></defs>',
    ]
    for index, row in enumerate(rows):
        parts.append(f'<text x="0" y="{index * ROW + 15}" fill="currentColor">{escape(row[:18])}</text>')
    for bar in bars:
        x, y = LABEL + bar.start * scale, rows.index(bar.row) * ROW + 3
        width = max(1.0, (bar.end - bar.start) * scale)
        colour = COLOURS[names.index(bar.label) % len(COLOURS)]
        text = f"{bar.label}: {bar.start:.1f} to {bar.end:.1f} s{' (failed)' if bar.failed else ''}"
        parts.append(
            f'<g><title>{escape(text)}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 6}" fill="{colour}"/>'
        )
        if bar.failed:
            parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 6}" fill="url(#failed)"/>')
        shown = bar.label[: int(width // 7)]
        if len(shown) > 2:
            parts.append(f'<text x="{x + 3:.1f}" y="{y + 12}" fill="#fff">{escape(shown)}</text>')
        parts.append("</g>")
    base = len(rows) * ROW + 8
    for tick in range(6):
        x = LABEL + (WIDTH - LABEL - 10) * tick / 5
        anchor = "end" if tick == 5 else "middle"
        parts.append(
            f'<text x="{x:.0f}" y="{base + 12}" text-anchor="{anchor}" fill="currentColor">{end * tick / 5:.0f} s</text>'
        )
    parts.append("</svg>")
    return "".join(parts)
