"""The table for people and the JSON for everything else."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure, Step
from benchmarks.memory import MEASURE

PACKAGES = ("pyspark", "delta-spark", "deltalake", "ptars", "pyarrow", "confluent-kafka", "protobuf", "numpy")


def machine() -> dict[str, object]:
    """What the figures depend on."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 1024**3, 1),
        "processor": platform.processor() or platform.machine(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "commit": commit or None,
        "load_average": os.getloadavg(),
    }


def table(figures: Sequence[Figure], console: Console) -> None:
    """Print one line for each figure."""
    shown = Table("figure", "median", "min .. max", "target", "met?", "note", title="Benchmarks")
    for figure in figures:
        if figure.error is not None:
            shown.add_row(figure.name, "FAILED", "", "", "[red]no[/]", figure.error[:300])
            continue
        met = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}[figure.met]
        spread = f"{_number(min(figure.samples))} .. {_number(max(figure.samples))}"
        target = str(figure.target) if figure.target else ""
        shown.add_row(figure.name, f"{_number(figure.median or 0)} {figure.unit}", spread, target, met, figure.note)
    console.print(shown)


@dataclass
class Result:
    """What a run has measured so far, scenario by scenario.

    Attributes:
        machine: what the figures depend on, when the run began.
        options: of the run.
        scenarios: name -> figures, steps, seconds, and when it was measured.
    """

    machine: dict[str, object]
    options: dict[str, object]
    scenarios: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, name: str, figures: Sequence[Figure], steps: Sequence[Step], seconds: float) -> None:
        """Note a scenario, whether it failed or not."""
        self.scenarios[name] = {
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 1),
            "figures": [figure.to_dict() for figure in figures],
            "steps": [asdict(step) for step in steps],
        }

    def take(self, path: Path) -> None:
        """Keep the scenarios of a file that were measured at the same commit with the same options, and did not fail."""
        if not path.exists():
            return
        found = json.loads(path.read_text())
        if found["machine"]["commit"] == self.machine["commit"] and found["options"] == self.options:
            self.scenarios |= {name: part for name, part in found["scenarios"].items() if not _failed(part)}

    def save(self, path: Path) -> None:
        """Write everything, raw samples included."""
        path.parent.mkdir(parents=True, exist_ok=True)
        measure = f"{MEASURE} of the process tree, without broker and registry"
        content = {"options": self.options, "machine": self.machine, "memory_measure": measure, "scenarios": self.scenarios}
        path.write_text(json.dumps(content, indent=2) + "\n")

    def figures_of(self, name: str) -> list[Figure]:
        """A scenario's figures, to be shown."""
        return [Figure.of(figure) for figure in self.scenarios[name]["figures"]]

    @property
    def failed(self) -> bool:
        """Whether a scenario failed."""
        return any(map(_failed, self.scenarios.values()))


def _failed(scenario: Mapping[str, Any]) -> bool:
    return any(figure["error"] for figure in scenario["figures"])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
