"""The table for people and the JSON for everything else."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

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


def save(
    path: Path, options: dict[str, object], place: dict[str, object], figures: Sequence[Figure], steps: Sequence[Step]
) -> None:
    """Write everything, raw samples included; `place`: `machine`, when the run began."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "options": options,
        "machine": place,
        "memory_measure": f"{MEASURE} of the process tree, without broker and registry",
        "figures": [figure.to_dict() for figure in figures],
        "steps": [asdict(step) for step in steps],
    }
    path.write_text(json.dumps(content, indent=2) + "\n")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
