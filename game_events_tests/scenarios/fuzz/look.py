"""Compares a world's tables, read by DuckDB and delta-rs, with what its truth says; and the project's own checks with both."""

from __future__ import annotations

import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from game_events.pipeline.checks.audits import RECOMPUTED
from game_events.pipeline.checks.table_checks import CHECKS, CONSERVED, CONTINUOUS, UNIQUE
from game_events_tests.scenarios.fuzz.declared import COPIED, DROPPED, EXTENSIONS, GAMES, GOLDS, HELD, KEPT, Row, by_key, normal
from game_events_tests.scenarios.fuzz.edges import plain
from game_events_tests.scenarios.fuzz.feeds import sent
from game_events_tests.scenarios.fuzz.truth import MAYBE, NO, YES, Fate, Outcome, kept_outcomes, rows_of
from game_events_tests.scenarios.fuzz.world import World
from game_events_tests.support.reconciliation import database

#: Rows that a difference shows.
SHOWN = 3
PLACE = ("_kafka_topic_id", "_kafka_partition", "_kafka_offset")
OWN_CHECKS = (CONTINUOUS, UNIQUE, CONSERVED, RECOMPUTED)
_RID = re.compile(rb"r(\d+)e")


class Look:
    """One look at all tables of a world."""

    def __init__(self, world: World) -> None:
        self._world, self._truth = world, world.truth
        self.problems: list[str] = []
        self._bronze = self._rows("bronze_events")
        self._quarantine = self._rows("quarantine_events")
        self._unified = by_key(self._rows("gold_unified_player_agg"), "game_name")

    def differences(self, *, all_checks: bool) -> list[str]:
        """What is not as it must be; if nothing is, the truth knows from then on where each event is.

        `all_checks`: the project's own checks that take Spark jobs, too.
        """
        self._look_at_bronze()
        held = self._held()
        found: dict[str, set[Outcome]] = {}
        for game in GAMES:
            found |= self._look_at_game(game, held.get(game, Counter()))
        self._look_for_erased()
        self._compare_own_checks(all_checks=all_checks)
        if not self.problems:
            self._settle(found)
        return self.problems

    def _settle(self, found: Mapping[str, set[Outcome]]) -> None:
        there = {row["rid"] for row in self._bronze} | set(self._damaged())
        for rid, fate in self._truth.live.items():
            if fate.gone == MAYBE:
                fate.gone = NO if rid in there else YES
            fate.settled = True
            fate.configs.clear()
            fate.outcomes = found.get(rid, fate.outcomes)
        self._truth.broken.clear()

    def _differ(self, what: str, has: Iterable[object], must: Iterable[object]) -> None:
        """Two collections that must be equal, each element as often."""
        here, there = Counter(map(_text, has)), Counter(map(_text, must))
        if here != there:
            extra, missing = list((here - there).elements()), list((there - here).elements())
            self.problems.append(
                f"{what}: {len(extra)} that must not be there {extra[:SHOWN]}, {len(missing)} missing {missing[:SHOWN]}"
            )

    def _rows(self, table: str) -> list[Row]:
        return read(f"{self._world.lakehouse.root}/{table}")

    # --- bronze, and what does not decode

    def _look_at_bronze(self) -> None:
        live = self._truth.live
        must = sent(fate.event for fate in live.values() if not fate.event.damaged)
        types = self._world.feed.types
        self._differ("bronze", ((r["rid"], r["_message_type"]) for r in self._bronze), ((e.rid, types[e.kind]) for e in must))
        found = self._damaged()
        sure = {rid for rid, fate in live.items() if fate.event.damaged and fate.gone == NO}
        maybe = {rid for rid, fate in live.items() if fate.event.damaged and fate.gone == MAYBE}
        self._differ(
            "quarantine of what does not decode",
            found,
            [*sure, *(maybe & set(found)), *["? TOMBSTONE"] * self._world.feed.tombstones],
        )

    def _damaged(self) -> list[str]:
        here = [row for row in self._quarantine if row["layer"] == "bronze"]
        names = [_RID.search(row["_raw_value"] or b"") for row in here]
        return [f"r{name[1].decode()}e" if name else f"? {row['reason']}" for name, row in zip(names, here, strict=True)]

    def _held(self) -> dict[str, Counter[str]]:
        """Game -> rejected rows, by the names that bronze has for their coordinates."""
        names = {tuple(row[c] for c in PLACE): row["rid"] for row in self._bronze}
        found = defaultdict[str, Counter[str]](Counter)
        for row in self._quarantine:
            if row["layer"] == "silver" and row["replayed_batch"] is None:
                found[row["game"]][names.get(tuple(row[c] for c in PLACE), "not in bronze")] += 1
        return found

    # --- a game

    def _look_at_game(self, game: str, held: Counter[str]) -> dict[str, set[Outcome]]:
        silver = self._silver(game)
        found: dict[str, set[Outcome]] = {}
        rows = by_key(silver, "rid")
        mine = {rid: f for rid, f in self._truth.live.items() if f.event.game == game and not f.event.damaged}
        self._differ(f"{game}: names in silver", {rid for (rid,) in rows} - mine.keys(), ())
        written = Counter({rid: fate.event.times for rid, fate in mine.items()})
        self._differ(f"{game}: rejected rows", (held - written).elements(), ())
        astray = []
        for rid, fate in mine.items():
            here = rows.get((rid,), [])
            found[rid] = {o for o in fate.outcomes if self._fits(fate, o, here, held[rid])}
            if not found[rid] and not here and not held[rid] and self._truth.may_be_expired(fate):
                found[rid] = kept_outcomes(fate)
            if not found[rid]:
                astray.append(
                    f"{fate.event} is in silver {len(here)} times, held {held[rid]} times; must be {sorted(fate.outcomes)}; "
                    f"{[_shown(row) for row in here[:SHOWN]]}"
                )
        if astray:
            self.problems.append("\n  ".join([f"{game}: {len(astray)} of {len(mine)} rows are astray", *astray[:SHOWN]]))
        self._look_at_counters(game, [(mine[rid].event.times, outcomes) for rid, outcomes in found.items()])
        self._look_at_gold(game, silver)
        return found

    def _silver(self, game: str) -> list[Row]:
        """Rows of its tables; each must be in that of its type."""
        rows = []
        for name in self._tables(game):
            of_table = self._rows(name)
            rows += of_table
            is_own = name == f"silver_{game}_events"
            astray = [row["rid"] for row in of_table if self._world.has_table(row["_message_type"]) == is_own]
            self._differ(f"{name}: rows of other types", astray, ())
            if not is_own:
                self._differ(f"{name}: types", sorted({row["_message_type"] for row in of_table})[1:], ())
        return rows

    def _tables(self, game: str) -> list[str]:
        """What its tables in silver are called: its own, and those of its message types."""
        folders = Path(self._world.lakehouse.root).glob(f"silver_{game}__*_events")
        return [f"silver_{game}_events", *sorted(folder.name for folder in folders)]

    def _look_at_counters(self, game: str, found: list[tuple[int, set[Outcome]]]) -> None:
        """`found`: of each event how often it was written, and where it may be."""
        ways = {
            "rows_dropped": lambda place, times: times if place == DROPPED else 0,
            "rows_quarantined": lambda place, times: times if place == HELD else 0,
            "rows_duplicate": lambda place, times: times - 1 if place == KEPT else 0,
        }
        if game in self._truth.expiring:
            return  # rows that are gone are counted apart
        tables = [table for name in self._tables(game) if (table := _opened(f"{self._world.lakehouse.root}/{name}"))]
        low, high, counted = Counter[str](), Counter[str](), Counter[str]()
        for app, rows in ways.items():
            # Which of an erased person's rows were dropped, and which were duplicates, is not known any more.
            name = "rows_dropped" if self._truth.erased and app == "rows_duplicate" else app
            low[name] += sum(min(rows(place, times) for place, _ in outcomes) for times, outcomes in found if outcomes)
            high[name] += sum(max(rows(place, times) for place, _ in outcomes) for times, outcomes in found if outcomes)
            counted[name] += sum(table.transaction_version(app) or 0 for table in tables)
        for name, rows_counted in counted.items():
            if not low[name] <= rows_counted <= high[name]:
                self.problems.append(f"{game}: {name} is {rows_counted}, must be {low[name]} to {high[name]}")

    def _look_at_gold(self, game: str, silver: list[Row]) -> None:
        gold = self._rows(f"gold_{game}_player_agg")
        unified = [{k: v for k, v in row.items() if k != "game_name"} for row in self._unified.get((game,), [])]
        self._differ(f"{game}: unified", unified, gold)
        if game in self._truth.expiring:
            return  # gold keeps what silver has lost
        of = GOLDS[self._world.gold][1]
        must = [{"gamer_id": gamer, **of(rows)} for (gamer,), rows in by_key(silver, "gamer_id").items()]
        self._differ(f"{game}: gold", gold, must)
        for name, aggregate in EXTENSIONS[self._world.extension].aggregates.items():
            self._differ(f"{game}: {name}", self._rows(f"gold_{game}_{name}"), aggregate(silver))

    def _fits(self, fate: Fate, outcome: Outcome, rows: list[Row], held: int) -> bool:
        """Whether silver's rows of an event, and those of quarantine, so many, are what an outcome says."""
        event = fate.event
        must = rows_of(event, outcome)
        if held != (event.times if outcome[0] == HELD else 0) or len(rows) != len(must):
            return False
        own = event.fields() | {"_message_type": self._world.feed.types[event.kind]}
        names = ("gamer_id", "n", "dev", "x", "event_timestamp", "game_name", "_message_type")
        for row, more in zip(sorted(rows, key=lambda r: r.get("part") or 0), must, strict=True):
            if any(normal(row.get(name)) != normal(own.get(name)) for name in names):
                return False
            if any(row.get(name) != value for name, value in more.items()):
                return False
            if any(plain(row.get(name)) != plain(value) for name, value in event.edges.items()):
                return False
            for name, value in event.extra.items():
                if row.get(name) != value and (name in fate.sure or row.get(name) is not None):
                    return False
        return True

    # --- persons, and the project's own checks

    def _look_for_erased(self) -> None:
        for name in self._world.lakehouse.names():
            there = {row["gamer_id"] for row in self._rows(name) if row.get("gamer_id") in self._truth.erased}
            if there:
                self.problems.append(f"{name} has erased persons: {sorted(there)}")

    def _copies_stay(self) -> bool:
        """Whether rows of a transformation that is taken out may be there: the check counts them until a full refresh."""
        copied = [fate for fate in self._truth.live.values() if fate.event.game == COPIED]
        return not EXTENSIONS[self._world.extension].copies and any(
            EXTENSIONS[extension].copies for fate in copied for _, extension in fate.outcomes
        )

    def _compare_own_checks(self, *, all_checks: bool) -> None:
        pipeline = self._world.pipeline()
        for check in CHECKS:
            if check.name in OWN_CHECKS and (all_checks or check.name not in (RECOMPUTED, UNIQUE)):
                began = time.monotonic()
                said = check.run(pipeline)
                self._world.say(f"   {check.name}: {time.monotonic() - began:.1f} s")
                if not said.passed and not self.problems and not (check.name == CONSERVED and self._copies_stay()):
                    self.problems.append(f"check {check.name} is wrong: {said.summary}")
                elif self.problems and check.name == CONSERVED:
                    self.problems.append(f"check {check.name}: passed={said.passed}: {said.summary}")


def read(uri: str) -> list[Row]:
    """Rows of a table, as DuckDB reads the files that delta-rs finds in its log; none if there is no table."""
    table = _opened(uri)
    files = table.file_uris() if table is not None else []
    if table is None or not files:
        return []
    with database().cursor() as cursor:
        found = cursor.sql("SELECT * FROM read_parquet(?, union_by_name = true)", params=[files])
        rows = found.to_arrow_table()
        # Files of tables with row tracking have columns of their own.
        names = {field.name for field in table.schema().fields}
        return list(rows.select([name for name in rows.column_names if name in names]).to_pylist())


def _opened(uri: str) -> DeltaTable | None:
    return DeltaTable(uri) if DeltaTable.is_deltatable(uri) else None


def _text(value: object) -> str:
    if isinstance(value, dict):
        return json.dumps({k: normal(v) for k, v in value.items()}, default=str, sort_keys=True)
    return str(value)


def _shown(row: Mapping[str, Any]) -> Row:
    return {k: v for k, v in row.items() if not k.startswith("_") and v is not None}
