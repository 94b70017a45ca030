"""The table `progress`: the low watermark of each layer, which saves work.

Each table's own `txn` decides. A low watermark (`floor`) means: everything up to this bronze batch is in the layer, but for the
games listed as failed. A lost or old one costs reads, never a row. Layers: silver, gold, unified, and `gold:{name}` for each
user-defined aggregate.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa

from game_events.errors import without_quotes
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.retry import retry_on_conflict
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.layers import OWN_GOLD, Layer
from game_events.lakehouse.system_tables.system_table import SystemTable, schema_of
from game_events.lakehouse.tables import PROGRESS, Lakehouse

ATTEMPTS = 20
SCHEMA = schema_of(
    bronze_id=(pa.string(), "Content of bronze_events that the row speaks of"),
    layer=(pa.string(), "Layer"),
    kind=(pa.string(), "floor, game, failed, unrouted, decided_anew, searched or counted"),
    game=(pa.string(), "Game"),
    batch=(pa.int64(), "Batch of bronze_events that it has come to"),
    detail=(pa.string(), "More, as JSON or in words"),
)


@dataclass(frozen=True)
class Mark:
    """Metadata of a low watermark.

    `definition`: declaration of the aggregate; with another one the low watermark is void. `committed_at`: time of the newest
    commit to a table of the layer, in seconds since 1970.
    """

    definition: str = ""
    committed_at: float | None = None


class Search(NamedTuple):
    """A search of tables.

    Attributes:
        at_s: when it began, in seconds since 1970; 0: there was none.
        scope: what decides which tables are searched.
    """

    at_s: int = 0
    scope: str = ""


class GameRows(NamedTuple):
    """A game's rows of bronze, and those of them that rules have dropped, or put into quarantine."""

    rows: int
    dropped: int = 0
    quarantined: int = 0


@dataclass(frozen=True)
class CountedRows:
    """Rows of bronze that a check has counted and found in silver.

    Attributes:
        batch: the last of their batches; 0: none were counted.
        games: game -> its rows; None: those of no game with a silver table.
    """

    batch: int = 0
    games: Mapping[str | None, GameRows] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """One state of the table.

    Attributes:
        bronze_id: incarnation of bronze; another one starts from nothing.
        floors: layer -> bronze batch up to which it is complete, but for `failed`.
        games: game -> highest bronze batch in its silver table, of all known games.
        failed: (layer, game) -> why it failed last time.
        unrouted_batch: last batch with a valid name that was not admitted; 0: there was none.
        redecided: number of quarantine's repeated decisions that silver has carried out.
        marks: layer -> metadata of its low watermark; of user-defined aggregates.
        searched: the last search of the games' tables for deleted and restored ones.
        counted: what the last check of silver's rows has counted.
    """

    bronze_id: str
    floors: dict[str, int] = field(default_factory=dict)
    games: dict[str, int] = field(default_factory=dict)
    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    unrouted_batch: int = 0
    redecided: int = 0
    marks: dict[str, Mark] = field(default_factory=dict)
    searched: Search = field(default_factory=Search)
    counted: CountedRows = field(default_factory=CountedRows)

    def floor(self, layer: str) -> int:
        """Bronze batch up to which a layer is complete."""
        return self.floors.get(layer, 0)

    def failed_in(self, layer: str) -> set[str]:
        """Games that are behind the low watermark of a layer."""
        return {game for at, game in self.failed if at == layer}

    def done(
        self,
        layer: str,
        floor: int,
        games: dict[str, int] | None = None,
        failed: dict[str, str] | None = None,
        seen: Progress | None = None,
    ) -> Progress:
        """This state with a layer complete up to `floor`, but for exactly `failed`.

        If a concurrent run is further, its failures remain, too: they are of batches that this run has not read. So do failures
        since this run read the state (`seen`), as the concurrent run may have replaced tables after this run read them.
        """
        known = self.games | {game: max(batch, self.games.get(game, 0)) for game, batch in (games or {}).items()}
        overtaken = self.floor(layer) > floor
        since = {k for k, v in self.failed.items() if seen is not None and seen.failed.get(k) != v}
        failures = {k: v for k, v in self.failed.items() if overtaken or k[0] != layer or k in since}
        failures |= {(layer, game): why for game, why in (failed or {}).items()}
        floors = self.floors | {layer: max(floor, self.floor(layer))}
        return replace(self, floors=floors, games=known, failed=failures)

    def pending(self, layer: str, games: Iterable[str], why: str) -> Progress:
        """This state with games that a layer has to process again, whatever its low watermark is."""
        return replace(self, failed=self.failed | {(layer, game): why for game in games})

    def pending_downstream(self, games: Iterable[str], why: str) -> Progress:
        """This state with games pending in all layers made from silver, aggregates that are not declared any more included."""
        names, state = list(games), self
        for layer in (Layer.GOLD, Layer.UNIFIED, *(at for at in self.floors if at.startswith(OWN_GOLD))):
            state = state.pending(layer, names, why)
        return state

    def marked(self, layer: str, mark: Mark) -> Progress:
        """This state with a layer's metadata; low watermark and failures of another definition are removed."""
        state = self
        if self.marks.get(layer, Mark()).definition != mark.definition:
            floors = {at: batch for at, batch in self.floors.items() if at != layer}
            state = replace(self, floors=floors, failed={k: v for k, v in self.failed.items() if k[0] != layer})
        return replace(state, marks=self.marks | {layer: mark})


class ProgressTable:
    """Reads and replaces the state; changes by concurrent runs are never overwritten."""

    def __init__(self, lakehouse: Lakehouse) -> None:
        description = "How far each layer has come: a hint that saves work; each table's own txn is the truth"
        self.declaration = SystemTable(lakehouse.table(PROGRESS), SCHEMA, description, Txn.PROGRESS)

    def read(self, bronze_id: str) -> Progress:
        """The state for this bronze table; an empty one if there is none."""
        return _state(bronze_id, self.declaration.read(self.declaration.table.open()).to_pylist())

    @retry_on_conflict(ATTEMPTS)
    def update(self, bronze_id: str, change: Callable[[Progress], Progress]) -> Progress:
        """Apply a change to the newest state, again after a conflict.

        Raises:
            ConflictError: concurrent runs won every attempt; nothing is lost, the next run does the same work again.
        """
        handle = self.declaration.table.open()
        rows = self.declaration.read(handle).to_pylist()
        before = _state(bronze_id, rows)
        after = change(before)
        if after == before or (rows and _is_later(rows[0]["bronze_id"], bronze_id)):
            return after
        self.declaration.commit(handle, _rows(after), replace=True)
        failpoints.reach("progress_moved")
        return after


def _state(bronze_id: str, every: list[dict[str, Any]]) -> Progress:
    rows = [r for r in every if r["bronze_id"] == bronze_id]
    return Progress(
        bronze_id,
        floors={r["layer"]: r["batch"] for r in rows if r["kind"] == "floor"},
        games={r["game"]: r["batch"] for r in rows if r["kind"] == "game"},
        failed={(r["layer"], r["game"]): r["detail"] for r in rows if r["kind"] == "failed"},
        unrouted_batch=max((r["batch"] for r in rows if r["kind"] == "unrouted"), default=0),
        redecided=max((r["batch"] for r in rows if r["kind"] == "decided_anew"), default=0),
        searched=max((Search(r["batch"], r["detail"]) for r in rows if r["kind"] == "searched"), default=Search()),
        marks={r["layer"]: Mark(**json.loads(r["detail"])) for r in rows if r["kind"] == "floor" and r["detail"]},
        counted=CountedRows(
            max((r["batch"] for r in rows if r["kind"] == "counted"), default=0),
            {r["game"]: GameRows(*json.loads(r["detail"])) for r in rows if r["kind"] == "counted"},
        ),
    )


def _is_later(held: str, bronze_id: str) -> bool:
    """Whether the table is of a later incarnation of the same bronze: the earlier one needs no state."""
    (table, _, later), (mine, _, earlier) = held.partition("@"), bronze_id.partition("@")
    return table == mine and int(later or 0) > int(earlier or 0)


def _rows(state: Progress) -> pa.Table:
    rows: list[dict[str, object]] = []

    def add(kind: str, layer: str | None, game: str | None, batch: int | None, detail: str | None = None) -> None:
        rows.append(
            {"bronze_id": state.bronze_id, "layer": layer, "kind": kind, "game": game, "batch": batch, "detail": detail}
        )

    for layer, batch in state.floors.items():
        mark = state.marks.get(layer)
        add("floor", layer, None, batch, json.dumps(asdict(mark)) if mark is not None else None)
    for game, batch in state.games.items():
        add("game", Layer.SILVER, game, batch)
    for (layer, game), why in state.failed.items():
        add("failed", layer, game, None, without_quotes(why))
    if state.unrouted_batch:
        add("unrouted", Layer.SILVER, None, state.unrouted_batch)
    if state.redecided:
        add("decided_anew", Layer.SILVER, None, state.redecided)
    if state.searched.at_s:
        add("searched", None, None, state.searched.at_s, state.searched.scope)
    for name, found in state.counted.games.items():
        add("counted", Layer.SILVER, name, state.counted.batch, json.dumps(found))
    return pa.Table.from_pylist(rows, schema=SCHEMA)
