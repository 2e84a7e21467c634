"""Charts as plain numbers: where each bar and point of an SVG stands. Nothing here knows a database or a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 600, 120
MARGIN = 8
"""Room above and below lines, for the points on them."""
GAP = 1
FEW = 5
"""Values in a row that make no curve."""
STACKED = ("succeeded", "dead", "unknown", "retrying", "cancelled")
"""Outcomes from the bottom of a bar to its top."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One outcome's share of a column."""

    kind: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Column:
    """One step of time: its bars, and its numbers for the table."""

    bars: tuple[Bar, ...]
    counts: tuple[int, ...]


def columns(steps: Sequence[Mapping[str, int]]) -> tuple[list[Column], int]:
    """Return the columns of a stacked chart, oldest first, and the number that its full height stands for."""
    top = max((sum(step.values()) for step in steps), default=0) or 1
    width = WIDTH / max(len(steps), 1)
    return [_column(step, number * width, width - GAP, top) for number, step in enumerate(steps)], top


def _column(step: Mapping[str, int], x: float, width: float, top: int) -> Column:
    bars, base = [], float(HEIGHT)
    for kind in STACKED:
        height = HEIGHT * step.get(kind, 0) / top
        if height:
            base -= height
            bars.append(Bar(kind, round(x, 1), round(base, 1), round(width, 1), round(height, 1)))
    return Column(tuple(bars), tuple(step.get(kind, 0) for kind in STACKED))


def percentile(histogram: Mapping[int, int], share: float) -> float | None:
    """Return the seconds within which this share of the jobs of a histogram stayed; None for an empty one.

    Bucket 1 goes up to a millisecond, each further one twice as far: the answer is at most twice too high.
    """
    total = sum(histogram.values())
    if not total:
        return None
    seen = 0
    for bucket in sorted(histogram):
        seen += histogram[bucket]
        if seen >= share * total:
            break
    return float(2 ** (bucket - 1)) / 1000


def points(values: Sequence[float | None], top: float) -> list[str]:
    """Return the polylines through values, broken where there is none; a lone value has none."""
    return [" ".join(f"{x:.1f},{y:.1f}" for x, y in run) for run in _runs(values, top) if len(run) > 1]


def dots(values: Sequence[float | None], top: float) -> list[str]:
    """Return "x,y" of the values that would be no more than dashes as lines: those with few neighbours."""
    return [f"{x:.1f},{y:.1f}" for run in _runs(values, top) if len(run) < FEW for x, y in run]


def _runs(values: Sequence[float | None], top: float) -> list[list[tuple[float, float]]]:
    width = WIDTH / max(len(values), 1)
    lines: list[list[tuple[float, float]]] = [[]]
    for number, value in enumerate(values):
        if value is None:
            lines.append([])
        else:
            y = HEIGHT - HEIGHT * value / (top or 1)
            lines[-1].append(((number + 0.5) * width, y))
    return [line for line in lines if line]
