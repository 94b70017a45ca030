"""Finds the rows of silver or gold that are new since the last export.

Progress is in the outbox: a `txn` for each table is the last bronze batch with rows in chunks. A table with
replaced rows (a full refresh, a repair, another bronze) has another name there: the setting `rest_on_replaced`, or an option
of the run, decides what is sent of it.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Self

from deltalake import DeltaTable

from game_events.errors import DataError, GameEventsError
from game_events.lakehouse.commits.incarnations import BronzeIdentity, incarnation, silver_app
from game_events.lakehouse.commits.parallel import for_games
from game_events.lakehouse.commits.transactions import Txn, txn
from game_events.lakehouse.tables import add_actions, is_game
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

    def way(self, game: str, *, replaced: bool) -> str:
        """How a game is exported: `new` rows only, or hold, resend, go_on, skip (all present rows)."""
        if game in self.resend:
            return "resend"
        if game in self.go_on:
            return "skip"
        return self.usual if replaced else "new"


@dataclass(frozen=True)
class Step:
    """New rows of one game; `gold`: None unless gold is exported.

    Attributes:
        above, upto: bronze batches (above, upto] are new.
        files: (path, lowest and highest batch, rows) of silver's files with new rows.
        origin: origin of the rows, for the chunks' keys.
        apps: `content`, `bronze`, `any` (latest exported batch), `resent` (full resends) -> `txn` of the outbox.
        expected: the outbox's values of them.
        resent: full resends, this one included.
    """

    game: str
    silver: DeltaTable
    gold: DeltaTable | None
    above: int
    upto: int
    files: tuple[tuple[str, int | None, int | None, int], ...]
    origin: ChunkOrigin
    apps: Mapping[str, str]
    expected: Mapping[str, int | None]
    resent: int

    @property
    def rows(self) -> int:
        """Approximate number of silver rows to read."""
        return sum(rows for *_, rows in self.files)

    @property
    def advance(self) -> dict[str, int]:
        """The outbox's `txn` once the rows are in it."""
        return {app: self.resent if name == "resent" else self.upto for name, app in self.apps.items()}

    def limited(self, batch: int) -> Self:
        """The step up to a batch."""
        upto = min(self.upto, max(batch, self.above))
        files = tuple(file for file in self.files if (file[1] or 0) <= upto)
        return replace(self, upto=upto, files=files, origin=replace(self.origin, batch_to=upto))


def find_changes(pipeline: Pipeline, outbox: DeltaTable | None, on_replaced: OnReplaced) -> tuple[list[Step], dict[str, str]]:
    """The new rows of every game (about `SLICE_ROWS`, and at least one batch), and why games are held back or failed."""
    bronze = pipeline.open_bronze()
    if bronze is None:
        return [], {}
    identity = BronzeIdentity.of(bronze)

    def find(game: str) -> Step | str | None:
        try:
            return _find_step(pipeline, identity, outbox, on_replaced, game)
        except GameEventsError as error:  # of one game: the others are exported
            return str(error)

    found = for_games(sorted(filter(is_game, pipeline.lakehouse.games())), find)
    steps = [step for step in found.values() if isinstance(step, Step)]
    return _bounded(steps), {game: why for game, why in found.items() if isinstance(why, str)}


def _find_step(
    pipeline: Pipeline, identity: BronzeIdentity, outbox: DeltaTable | None, on_replaced: OnReplaced, game: str
) -> Step | None:
    """New rows of one game, or None if there are none; DataError if they are held back."""
    kind = pipeline.settings.rest_source
    source, gold = pipeline.lakehouse.silver(game), None
    silver = pipeline.handles.look(source)
    upto = identity.taken(silver)
    if silver is None or upto is None:
        return None  # rows of another bronze: silver is replaced first
    content = f"{silver.metadata().id}:{incarnation(silver)}"
    if kind == "gold":
        source = pipeline.lakehouse.gold(game)
        gold = pipeline.handles.look(source)
        upto = txn(gold, silver_app(silver))
        if gold is None or upto is None:
            return None  # gold is not refreshed from this silver yet
        content = f"{gold.metadata().id}:{content}"
    of = {"content": content, "bronze": identity.key, "any": "", "resent": "resent"}
    apps = {name: Txn(kind).of(game, part) for name, part in of.items()}
    held = {name: txn(outbox, app) for name, app in apps.items()}
    above, resent = _start(game, source.name, upto, held, on_replaced)
    if above == upto and held["content"] == upto and resent == (held["resent"] or 0):
        return None
    origin = ChunkOrigin(source.name, game, f"{content}:{resent}", above, upto)
    expected = {app: held[name] for name, app in apps.items()}
    return Step(game, silver, gold, above, upto, _files(silver, above), origin, apps, expected, resent)


def _start(game: str, table: str, upto: int, held: Mapping[str, int | None], on_replaced: OnReplaced) -> tuple[int, int]:
    """Batch above which rows are sent, and number of full resends; DataError: a user decides what is sent."""
    resent = held["resent"] or 0
    way = on_replaced.way(game, replaced=held["content"] is None and held["any"] is not None)
    if way == "hold":
        raise DataError(
            f"the rows of {table} were replaced since they were exported (a full refresh, a repair, another bronze): choose "
            f"`game-events rest run --resend {game}` (all of them again, under new keys) or `--go-on {game}` (only what comes "
            "from now on); GAME_EVENTS_REST_ON_REPLACED decides it for every such table"
        )
    # Of the same bronze the batch numbers are still valid; of another one all present rows are old.
    still_valid = upto if held["bronze"] is None else held["bronze"]
    starts = {"new": held["content"] or 0, "resend": 0, "skip": upto, "go_on": still_valid}
    return starts[way], resent + (way == "resend")


def _files(silver: DeltaTable, above: int) -> tuple[tuple[str, int | None, int | None, int], ...]:
    """Files that may have rows above a batch."""
    root = silver.table_uri.rstrip("/")
    actions = add_actions(silver)
    names = {"path", "num_records", "min._batch", "max._batch"} & set(actions.column_names)
    rows = actions.select(sorted(names)).to_pylist()
    found = ((f"{root}/{a['path']}", a.get("min._batch"), a.get("max._batch"), a["num_records"] or 0) for a in rows)
    return tuple(file for file in found if file[2] is None or file[2] > above)


def _bounded(steps: list[Step]) -> list[Step]:
    """The steps up to the batch that reaches `SLICE_ROWS`; gold's are unchanged, as only changed players are sent."""
    if sum(step.rows for step in steps) <= SLICE_ROWS or steps[0].gold is not None:
        return steps
    known = sorted((file[2] or step.upto, file[3]) for step in steps for file in step.files)
    fitting = bisect_right(list(accumulate(rows for _, rows in known)), SLICE_ROWS)
    limit = known[max(fitting, 1) - 1][0]
    limited = ((step, step.limited(limit)) for step in steps)
    return [less for step, less in limited if less.upto > less.above or step.upto == step.above]
