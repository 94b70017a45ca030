"""Silver's and gold's one Spark job, done by Arrow in this process: the workers' code and the driver's are the real ones.

What stands here for Spark is a filter, a look-up of rejected coordinates, two rules and a count for each gamer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from game_events.lakehouse.data.columns import QUARANTINE_COLUMNS
from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.tables import Layer, is_game, paths
from game_events.pipeline.fanout import spread, write_game_files
from game_events.pipeline.gold.execute import GAME, Staged
from game_events.pipeline.gold.plan import GamePlan, GoldRun
from game_events.pipeline.quality import Decisions, Rewritten
from game_events.pipeline.silver.duplicates import NewKeys, find
from game_events.pipeline.silver.stage import GameStart, SilverInput, Staging, _outcome
from game_events.rules import Rule
from game_events.workers.duplicates import KEY, KeyReader
from game_events.workers.fanout import INVALID, OVER_LIMIT, FanOut
from game_events.workers.results import FanOutResult
from game_events.workers.rows import OldRows
from game_events.workers.rules import (
    DISPOSITION,
    DROP,
    DUPLICATE,
    DUPLICATE_READMITTED,
    HELD_BACK,
    KEEP,
    READMIT,
    REJECT,
    ROW,
    RuleColumns,
)
from game_events_tests.support.model.bronze import write
from game_events_tests.support.model.rewrites import place
from game_events_tests.support.worker_jobs import Rows

TIME = pa.timestamp("us", tz="UTC")
AGGREGATE = pa.schema(
    [("gamer_id", pa.string()), ("session_count", pa.int64()), ("min_timestamp", TIME), ("max_timestamp", TIME)]
)
#: Where a record is, and of which game.
Held = tuple[tuple[Any, ...], str]
#: Rows with this number are dropped.
UNLUCKY = 13
DROPS = Rule(name="not_unlucky", sql=f"n <> {UNLUCKY}", action="drop")
#: Each rejects what the one before rejects, and more.
REJECTS = (
    None,
    Rule(name="odd", sql="n % 4 <> 0", action="quarantine"),
    Rule(name="odd", sql="n % 2 <> 0", action="quarantine"),
)


def violates(rule: Rule, n: int) -> bool:
    """What Spark would say."""
    divisor = {r.sql: d for r, d in zip(REJECTS[1:], (4, 2), strict=True) if r is not None}
    return n == UNLUCKY if rule.action == "drop" else n % divisor[rule.sql] == 0


def stage_games(work: Staging) -> FanOutResult:
    """For `silver_isolated.stage_games`."""
    source, starts = work.source, work.starts
    asked = [g for g, s in (starts or {}).items() if s.judge_again or s.rejections_decided_to > s.read_after]
    held = set(_rejected(work.decisions, asked)) if asked else None
    split = _outcome(source, has_held_rows=bool(held))
    rows = read_arrow(source.pipeline.bronze, source.handle).to_pylist()
    judged: list[dict[str, Any]] = []
    for row in rows:
        start = GameStart(None, None, work.low_watermark) if starts is None else starts.get(row["game_name"])
        left_out = starts is None and row["game_name"] in work.left_out
        if start is not None and row["_batch"] > start.read_after and not left_out:
            judged.append(row | _judged(source.rules.rules, row, start, held or set()))
    if not judged:
        return FanOutResult()
    if source.keys.entries:
        _leave_out_duplicates(work, judged)
    mask = [pa.field(name, pa.int64()) for name in source.rules.names]
    schema = pa.schema([*pa.schema(source.handle.schema()), *mask, pa.field(DISPOSITION, pa.int32())])
    table = pa.Table.from_pylist(judged, schema=schema)
    task = FanOut(source.pipeline.lakehouse, "silver", "game_name", source.schema, work.routing, outcome=split)
    found: Any = Rows(table.to_batches(max_chunksize=5))
    return write_game_files(spread(found, task, len(judged), work.games, salt="_kafka_offset"), task)


def _leave_out_duplicates(work: Staging, judged: list[dict[str, Any]]) -> None:
    """Of rows that rules let in, those that were sent twice are found by the driver's and the workers' own code."""
    source, keys = work.source, work.source.keys
    part = [row for row in judged if row[DISPOSITION] in (KEEP, READMIT)]
    table = pa.Table.from_pylist(part, schema=pa.schema(source.handle.schema()))
    games = table.column(keys.entity).combine_chunks().dictionary_encode()
    with KeyReader(keys) as reader:
        keyed = reader.of(table, games)
    assert (keyed.entries >= 0).all()
    new = [NewKeys("", np.arange(len(part)), keyed, table.append_column(KEY, games))]
    spark = source.pipeline.get_spark
    twice = find(spark, source.pipeline.lakehouse, keys, source.base, new, None, work.history)
    assert twice is not None
    for number in twice.column(ROW).to_pylist():
        before = part[number][DISPOSITION]
        part[number][DISPOSITION] = DUPLICATE if before == KEEP else DUPLICATE_READMITTED


def new_names(work: Staging, known: set[str]) -> tuple[dict[str, int], Counter[str]]:
    """For `silver.admission._new_names`."""
    rows = read_arrow(work.source.pipeline.bronze, work.source.handle, ["game_name", "_batch"]).to_pylist()
    names = Counter(row["game_name"] for row in rows if row["_batch"] > work.low_watermark)
    new = {name: count for name, count in names.items() if name not in known | work.left_out}
    valid = {name: count for name, count in new.items() if is_game(name)}
    return valid, Counter({INVALID: sum(new.values()) - sum(valid.values()), OVER_LIMIT: sum(valid.values())})


def _rejected(decisions: Decisions, games: Iterable[str]) -> Iterator[Held]:
    if decisions.handle is not None and decisions.rejected_rows.keys() & set(games):
        for row in read_arrow(decisions.table, decisions.handle).to_pylist():
            if is_kept_out(row, games):
                yield place(row), row["game"]


def is_kept_out(row: Mapping[str, Any], games: Iterable[str]) -> bool:
    """Whether a row of quarantine is one that rules keep out of the silver of one of these games."""
    return row["layer"] == "silver" and row["replayed_batch"] is None and row["game"] in games


def note(source: SilverInput, decisions: Decisions, starts: Mapping[str, GameStart]) -> Rewritten:
    """For `silver.commit.noted`."""
    assert decisions.handle is not None
    held = set(_rejected(decisions, list(starts)))
    fates = {}
    for row in read_arrow(source.pipeline.bronze, source.handle).to_pylist():
        if row["game_name"] in starts:
            game = row["game_name"]
            judged = _judged(source.rules.rules, row, replace(starts[game], rejections_decided_to=0), held)
            fates[place(row), game] = judged[DISPOSITION]
    rows, rewritten = [], set()
    for path in paths(decisions.handle):
        of_file = pq.read_table(f"{decisions.table.uri}/{path}").to_pylist()
        if any(is_kept_out(row, starts) for row in of_file):
            rewritten.add(path)
            rows += of_file
    for row in rows:
        fate = fates.get((place(row), row["game"]))
        if is_kept_out(row, starts) and fate != HELD_BACK:
            row |= {"replayed_batch": source.batch, "replayed_table": row["game"] if fate == READMIT else None}
    return Rewritten(write(decisions.table, QUARANTINE_COLUMNS, rows), frozenset(rewritten))


def _judged(rules: tuple[Rule, ...], row: dict[str, Any], start: GameStart, held: set[Held]) -> dict[str, Any]:
    broken = [bit for bit, rule in enumerate(rules) if violates(rule, row["n"])]
    rejected, dropped = (any(rules[bit].action == action for bit in broken) for action in ("quarantine", "drop"))
    decided = row["_batch"] <= start.rejections_decided_to
    is_held = (place(row), row["game_name"]) in held
    if is_held and (decided or rejected or dropped):
        fate = HELD_BACK
    elif rejected and not decided:
        fate = REJECT
    elif dropped:
        fate = DROP
    else:
        fate = READMIT if is_held else KEEP
    return {"_violated_0": sum(1 << bit for bit in broken), DISPOSITION: fate}


def execute(
    run: GoldRun,
    plans: Mapping[str, GamePlan],
) -> Staged:
    """For `gold.execute.execute`."""
    rows: list[dict[str, Any]] = []
    for game, plan in plans.items():
        players: dict[str, dict[str, Any]] = {}
        parts: list[dict[str, Any]] = []
        for uri in plan.new.files:
            for event in pq.read_table(uri).to_pylist():
                if event["_batch"] > plan.above:
                    at = event["event_timestamp"]
                    parts.append({"gamer_id": event["gamer_id"], "session_count": 1, "min_timestamp": at, "max_timestamp": at})
        new = {part["gamer_id"] for part in parts}
        parts += [r for uri in plan.old.files for r in pq.read_table(uri).to_pylist() if r["gamer_id"] in new]
        for part in parts:
            player = players.setdefault(part["gamer_id"], {GAME: game, **part, "session_count": 0})
            player["session_count"] += part["session_count"]
            player["min_timestamp"] = min(player["min_timestamp"], part["min_timestamp"])
            player["max_timestamp"] = max(player["max_timestamp"], part["max_timestamp"])
        rows += players.values()
    table = pa.Table.from_pylist(rows, schema=pa.schema([(GAME, pa.string()), *AGGREGATE]))
    lakehouse, files = run.pipeline.lakehouse, {game: plan.old.paths for game, plan in plans.items()}
    old = OldRows(lakehouse, run.aggregate.name, GAME, ("gamer_id",), AGGREGATE, files)
    task = FanOut(lakehouse, Layer.GOLD, GAME, AGGREGATE, aggregate=run.aggregate.name, old=old)
    result = write_game_files(Rows(table.to_batches(max_chunksize=5)), task) if rows else FanOutResult()  # type: ignore[arg-type]
    return Staged(plans.keys(), result, AGGREGATE, RuleColumns.of((), "gold", GAME))
