"""Follows the tables' logs from outside while a loop works, as entries and replaced files do not stay for ever."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq


@dataclass
class CommitWatch:
    """What the tables below a root have got since this began to look.

    Attributes:
        root: folder of the tables.
        began: records produced before that time (seconds since 1970) are left out.
        bronze: times of bronze's commits.
        silver: game -> (time, batch, when its records were produced) of each commit.
        gold: game -> (batch, time) of each commit.
    """

    root: Path
    began: float
    bronze: list[float] = field(default_factory=list)
    silver: dict[str, list[tuple[float, int, np.ndarray]]] = field(default_factory=lambda: defaultdict(list))
    gold: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    _next: dict[Path, int] = field(default_factory=dict)

    def look(self) -> None:
        """Read what is new."""
        for at, _, _ in self._new(self.root / "bronze_events"):
            self.bronze.append(at)
        for table in sorted(self.root.glob("silver_*_events")):
            game = table.name.removeprefix("silver_").removesuffix("_events")
            for at, batch, paths in self._new(table):
                produced = [pq.read_table(table / path, columns=["_kafka_timestamp"]).column(0) for path in paths]
                seconds = np.concatenate([column.cast("int64").to_numpy() / 1e6 for column in produced])
                self.silver[game].append((at, batch, seconds[seconds >= self.began]))
            for at, batch, _ in self._new(self.root / f"gold_{game}_player_agg"):
                self.gold[game].append((batch, at))

    def latencies(self) -> tuple[np.ndarray, np.ndarray]:
        """Seconds from each record's production to the commits that brought it to silver and to gold."""
        to_silver, to_gold = [], []
        for game, commits in self.silver.items():
            golds = sorted(self.gold[game])
            batches = [batch for batch, _ in golds]
            for at, batch, produced in commits:
                place = bisect_left(batches, batch)
                in_gold = golds[place][1] if place < len(golds) else float("nan")
                to_silver.append(at - produced)
                to_gold.append(in_gold - produced)
        silver, gold = np.concatenate(to_silver), np.concatenate(to_gold)
        return silver, gold[~np.isnan(gold)]

    def _new(self, table: Path) -> list[tuple[float, int, list[str]]]:
        """(Seconds since 1970, bronze batch, files added) of each new commit of the pipeline's own, from the log's own JSON."""
        log = table / "_delta_log"
        version = self._next.get(table)
        if version is None:
            held = sorted(int(file.stem) for file in log.glob("*.json"))
            version = held[0] if held else 0
        found = []
        while (file := log / f"{version:020}.json").exists():
            actions = [json.loads(line) for line in file.read_text().splitlines()]
            (info,) = [a["commitInfo"] for a in actions if "commitInfo" in a]
            batch = info.get("bronze_batch") or info.get("batch")
            if batch is not None:
                found.append((info["timestamp"] / 1000, int(batch), [a["add"]["path"] for a in actions if "add" in a]))
            version += 1
        self._next[table] = version
        return found
