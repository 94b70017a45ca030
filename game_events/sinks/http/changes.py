"""Finds the rows of silver or gold that are new since the last export.

Progress is in the outbox: a `txn` for each table is the last bronze batch with rows in chunks. A table with
replaced rows (a full refresh, a repair, another bronze) has another name there: the setting `rest_on_replaced`, or an option
of the run, decides what is sent of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
from deltalake import DeltaTable

from game_events.errors import GameEventsError
from game_events.lakehouse.commits.generations import BronzeIdentity, erasures, generation, silver_app
from game_events.lakehouse.commits.parallel import for_games
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.tables import is_game
from game_events.pipeline.context import Pipeline
from game_events.sinks.http.chunks import ChunkOrigin

#: Rows of a slice, about: what is planned and sent before the next slice is planned.
SLICE_ROWS = 500_000


@dataclass(frozen=True)
class OnReplaced:
    """How tables with replaced rows are exported.

    Attributes:
        usual: for all of them: hold, resend, go_on.
        resend: games of which all rows are sent again, replaced or not.
        go_on: games of which only later rows are sent.
    """

    usual: str = "hold"
    resend: frozenset[str] = frozenset()
    go_on: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Step:
    """New rows of one game.

    Attributes:
        game: the game.
        silver: its silver table.
        gold: its gold table, if gold is exported.
        above, upto: bronze batches (above, upto] are new.
        files: (path, lowest and highest batch, rows) of silver's files with new rows.
        origin: origin of the rows, for the chunks' keys.
        expected, advance: `txn` of the outbox.
    """

    game: str
    silver: DeltaTable
    gold: DeltaTable | None
    above: int
    upto: int
    files: tuple[tuple[str, int | None, int | None, int], ...]
    origin: ChunkOrigin
    expected: Mapping[str, int | None] = field(default_factory=dict)
    advance: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Approximate number of silver rows to read."""
        return sum(rows for *_, rows in self.files)

    @property
    def erased(self) -> int:
        """Number of erasures of the version that is read."""
        return erasures(self.silver)


@dataclass
class Changes:
    """Games with new rows, and the reasons of games that are held back or failed."""

    steps: list[Step] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def find_changes(pipeline: Pipeline, outbox: DeltaTable | None, on_replaced: OnReplaced) -> Changes:
    """The new rows of every game: about `SLICE_ROWS`, and at least one batch."""
    bronze = pipeline.bronze.open()
    changes = Changes()
    if bronze is None:
        return changes
    games = sorted(filter(is_game, pipeline.lakehouse.games()))
    identity = BronzeIdentity.of(bronze)

    def find(game: str) -> Step | str | GameEventsError | None:
        try:
            return _find_step(pipeline, identity, outbox, on_replaced, game)
        except GameEventsError as error:  # of one game: the others are exported
            return error

    for game, found in for_games(games, find).items():
        if isinstance(found, Step):
            changes.steps.append(found)
        elif isinstance(found, GameEventsError):
            changes.failed[game] = str(found)
        elif found is not None:
            changes.held[game] = found
    changes.steps = _bounded(changes.steps)
    return changes


def _find_step(
    pipeline: Pipeline, identity: BronzeIdentity, outbox: DeltaTable | None, on_replaced: OnReplaced, game: str
) -> Step | str | None:
    """New rows of one game, the reason why they are held back, or None if there are none."""
    kind = pipeline.settings.rest_source
    of_gold = kind == "gold"
    gold = pipeline.lakehouse.gold(game).open() if of_gold else None
    silver = pipeline.lakehouse.silver(game).open()
    upto = identity.taken(silver)
    if silver is None or upto is None or (of_gold and gold is None):
        return None  # rows of another bronze: silver is replaced first
    source, content = pipeline.lakehouse.silver(game), f"{silver.metadata().id}:{generation(silver)}"
    if gold is not None:
        upto = gold.transaction_version(silver_app(silver))
        if upto is None:
            return None  # gold is not refreshed from this silver yet
        source, content = pipeline.lakehouse.gold(game), f"{gold.metadata().id}:{content}"
    apps = {
        name: Txn(kind).of(game, of)
        for name, of in (("content", content), ("bronze", identity.key), ("any", ""), ("resent", "resent"))
    }
    held = {name: outbox.transaction_version(app) if outbox is not None else None for name, app in apps.items()}
    above, resent, why = _start(game, source.name, upto, held, on_replaced)
    if why is not None:
        return why
    if above == upto and held["content"] == upto and resent == (held["resent"] or 0):
        return None
    return Step(
        game,
        silver,
        gold,
        above,
        upto,
        _files(silver, above),
        ChunkOrigin(source.name, game, f"{content}:{resent}", above, upto),
        expected={app: held[name] for name, app in apps.items()},
        advance={apps["content"]: upto, apps["bronze"]: upto, apps["any"]: upto, apps["resent"]: resent},
    )


def _start(
    game: str, table: str, upto: int, held: Mapping[str, int | None], on_replaced: OnReplaced
) -> tuple[int, int, str | None]:
    """Batch above which rows are sent, number of full resends, and the reason why nothing is sent."""
    resent, taken, why = held["resent"] or 0, held["content"], None
    replaced = taken is None and held["any"] is not None
    above = taken or 0
    if game in on_replaced.resend or (replaced and on_replaced.usual == "resend" and game not in on_replaced.go_on):
        above, resent = 0, resent + 1
    elif game in on_replaced.go_on:
        above = upto
    elif replaced and on_replaced.usual == "go_on":
        # Of the same bronze the batch numbers are still valid; of another one all present rows are old.
        above = upto if held["bronze"] is None else held["bronze"]
    elif replaced:
        why = (
            f"the rows of {table} were replaced since they were exported (a full refresh, a repair, another bronze): choose "
            f"`game-events rest run --resend {game}` (all of them again, under new keys) or `--go-on {game}` (only what comes "
            "from now on); GAME_EVENTS_REST_ON_REPLACED decides it for every such table"
        )
    return above, resent, why


def _files(silver: DeltaTable, above: int) -> tuple[tuple[str, int | None, int | None, int], ...]:
    """Files that may have rows above a batch."""
    root = silver.table_uri.rstrip("/")
    actions = pa.table(silver.get_add_actions(flatten=True))
    names = {"path", "num_records", "min._batch", "max._batch"} & set(actions.column_names)
    rows = actions.select(sorted(names)).to_pylist()
    found = ((f"{root}/{a['path']}", a.get("min._batch"), a.get("max._batch"), a["num_records"] or 0) for a in rows)
    return tuple(file for file in found if file[2] is None or file[2] > above)


def _bounded(steps: list[Step]) -> list[Step]:
    """The steps up to the batch that reaches `SLICE_ROWS`; gold's are unchanged, as only changed players are sent."""
    if not steps or steps[0].gold is not None or sum(step.rows for step in steps) <= SLICE_ROWS:
        return steps
    known = sorted((file[2] or step.upto, file[3]) for step in steps for file in step.files)
    limit, so_far = known[0][0], 0
    for batch, rows in known:
        if so_far and so_far + rows > SLICE_ROWS:
            break
        limit, so_far = batch, so_far + rows
    found = []
    for step in steps:
        upto = min(step.upto, max(limit, step.above))
        if upto == step.above and step.upto != step.above:
            continue
        advance = {
            app: upto if value == step.upto and not app.endswith(":resent") else value for app, value in step.advance.items()
        }
        files = tuple(file for file in step.files if file[1] is None or file[1] <= upto)
        found.append(replace(step, upto=upto, files=files, origin=replace(step.origin, batch_to=upto), advance=advance))
    return found


def schema_text(handle: DeltaTable) -> str:
    """Text of a table's columns: equal for tables that can be read together."""
    return json.dumps(json.loads(handle.schema().to_json()), sort_keys=True)
