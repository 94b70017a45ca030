"""What is measured: steps (seconds and memory of one repetition) and the figures made from them, with their targets."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

_COMPARE = {">=": operator.ge, "<=": operator.le}


@dataclass(frozen=True)
class Step:
    """One repetition of one step.

    Attributes:
        name, games: what ran; 0 games where they do not matter.
        pair: number of the repetition; steps of the same pair ran right behind each other.
        events: records it worked on.
        seconds: wall time, warm.
        peak_mib: highest memory of its process tree meanwhile; 0 if nobody looked.
        cpu_s: processor time of its process tree meanwhile: tells work from waiting, and from a busy machine.
        note: what is not measured but said, for example an extrapolation.
    """

    name: str
    games: int
    pair: int
    events: int
    seconds: float
    peak_mib: float
    cpu_s: float
    note: str = ""

    @property
    def label(self) -> str:
        """What ran, for people."""
        return f"{self.name}, {self.games:,} games" if self.games else self.name

    @property
    def rate(self) -> float:
        """Events each second."""
        return self.events / self.seconds


@dataclass(frozen=True)
class Target:
    """What a median must reach."""

    compare: str
    value: float

    def met(self, value: float) -> bool:
        return bool(_COMPARE[self.compare](value, self.value))

    def __str__(self) -> str:
        return f"{self.compare} {self.value:g}"


@dataclass
class Figure:
    """One line of the table.

    Attributes:
        name: what it says.
        unit: of the samples.
        samples: one for each pair.
        target: None: reported only.
        note: how to read it.
        error: why there is none.
        scenario: the one that measured it.
    """

    name: str
    unit: str
    samples: list[float] = field(default_factory=list)
    target: Target | None = None
    note: str = ""
    error: str | None = None
    scenario: str = ""

    @property
    def median(self) -> float | None:
        return median(self.samples) if self.samples else None

    @property
    def met(self) -> bool | None:
        """Whether the median meets the target; None without a target."""
        if self.error is not None:
            return False
        if self.target is None or self.median is None:
            return None
        return self.target.met(self.median)

    def to_dict(self) -> dict[str, object]:
        return {
            "scenario": self.scenario,
            "name": self.name,
            "unit": self.unit,
            "median": self.median,
            "min": min(self.samples, default=None),
            "max": max(self.samples, default=None),
            "samples": self.samples,
            "target": str(self.target) if self.target else None,
            "met": self.met,
            "note": self.note,
            "error": self.error,
        }

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> Figure:
        """The inverse of `to_dict`."""
        compare, value = (saved["target"] or " ").split(" ")
        target = Target(compare, float(value)) if saved["target"] else None
        parts = {name: saved[name] for name in ("name", "unit", "samples", "note", "error", "scenario")}
        return cls(**parts, target=target)


@dataclass
class Measured:
    """All steps of a run so far, and the figures that need nothing but them."""

    steps: list[Step] = field(default_factory=list)

    def of(self, name: str, games: int) -> list[Step]:
        """Repetitions of a step by pair."""
        return sorted((s for s in self.steps if (s.name, s.games) == (name, games)), key=lambda s: s.pair)

    def seconds(self, names: Iterable[str], games: int) -> list[float]:
        """For each pair the seconds of several steps together."""
        return [sum(parts) for parts in zip(*([s.seconds for s in self.of(n, games)] for n in names), strict=True)]

    def rate(self, name: str, games: int) -> Figure:
        """Thousand events each second, with the peak memory if it was looked at."""
        steps = self.of(name, games)
        peak = max((s.peak_mib for s in steps), default=0.0)
        cpu = median(s.cpu_s for s in steps) if steps else 0.0
        spent = f"{cpu:.1f} s of processor time"
        notes = [f"peak {peak:,.0f} MiB, {spent}" if peak else spent, *sorted({s.note for s in steps if s.note})]
        label = steps[0].label if steps else name
        return Figure(label, "k events/s", [s.rate / 1000 for s in steps], note="; ".join(notes))


def ratio(name: str, above: list[float], below: list[float], target: Target | None = None, note: str = "") -> Figure:
    """Quotients pair by pair: what slows the machine down for a while slows both of a pair."""
    return Figure(name, "x", [a / b for a, b in zip(above, below, strict=True)], target, note)
