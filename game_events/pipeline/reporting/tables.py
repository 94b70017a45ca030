"""Results of single tables and of single rules."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import add
from types import NoneType

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from game_events.decoding.core.column_types import type_name
from game_events.errors import GameEventsError
from game_events.lakehouse.descriptions import comments_of
from game_events.lakehouse.layers import Layer, is_gold
from game_events.lakehouse.tables import Table, add_actions
from game_events.pipeline.reporting.merging import Summed, add_counts, distinct, latest, merge, merged

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TableReport:
    """What happened to one table.

    Attributes:
        layer: bronze, quarantine, silver, gold, unified, or `gold:{name}` for a custom aggregate.
        table: name; `location` is its URI.
        game: for tables of one game.
        rows: rows committed by this run (gold is replaced: all of its rows; unified: those of the files that were copied).
        table_rows: rows of the table after it; `table_bytes`: bytes of its files.
        version: Delta version after the commit.
        batch: highest bronze batch in it.
        columns: (name, type) of each column; `comments`: descriptions of columns that have one.
        new: the table was created by this run.
        new_columns: columns that this run added.
        error: why nothing was committed, if so.
        dropped, quarantined: rows that rules rejected in this run.
        violations: rule -> rows that violate it, of the rules that were violated; None: no rule was evaluated.
    """

    layer: str
    table: str
    location: str
    game: str | None = None
    rows: int = merged(add, int)
    table_rows: int = merged(latest, int)
    table_bytes: int = merged(latest, int)
    version: int | None = merged(latest, NoneType)
    batch: int | None = merged(latest, NoneType)
    columns: Sequence[tuple[str, str]] = merged(latest, list)
    comments: Mapping[str, str] = merged(latest, dict)
    new: bool = merged(lambda first, second: first or second, bool)
    new_columns: Sequence[str] = merged(distinct, list)
    error: str | None = merged(latest, NoneType)
    dropped: int = merged(add, int)
    quarantined: int = merged(add, int)
    violations: Counter[str] | None = merged(
        lambda first, second: first if second is None else (first or Counter()) + second, NoneType
    )

    def __post_init__(self) -> None:
        """Keep the layer as a plain text: Dagster's serializer does not know this project's enums."""
        object.__setattr__(self, "layer", str(self.layer))


def present(layer: str, table: Table, game: str | None = None) -> TableReport | None:
    """The result of a table of which no row was changed; None: there is none, or its log does not say what it holds."""
    try:
        handle = table.open_to_read()
    except (GameEventsError, DeltaError, OSError) as error:
        log.warning("table=%s not_described=true cause=%s", table.name, type(error).__name__)
        return None
    files = add_actions(handle) if handle is not None else None
    if handle is None or files is None or files.column("num_records").null_count:
        return None
    schema = pa.schema(handle.schema())
    rows, size = (int(pc.sum(files.column(name)).as_py() or 0) for name in ("num_records", "size_bytes"))
    return TableReport(
        layer,
        table.name,
        table.uri,
        game,
        table_rows=rows,
        table_bytes=size,
        version=handle.version(),
        columns=[(column.name, type_name(column.type)) for column in schema],
        comments=comments_of(schema),
    )


def merge_tables(first: Sequence[TableReport], second: Sequence[TableReport]) -> Sequence[TableReport]:
    """One entry for the commits of each table, after them its failures.

    A commit removes the earlier failures of its table, as it is a later attempt: of the step, or of the next cycle. A step that
    follows a failed full refresh in the same run makes no such commit (`TriggeredRun`).
    """
    if not second:
        return first
    # Of a table of all games a commit may be of one game alone.
    committed = {(t.layer, t.table, t.game) for t in second if t.error is None}
    found = {
        (t.table, t.game, t.error is None): t
        for t in first
        if t.error is None or committed.isdisjoint([(t.layer, t.table, t.game), (t.layer, t.table, None)])
    }
    for table in second:
        key = (table.table, table.game, table.error is None)
        before = found.get(key)
        if before is None or table.error is not None:
            found[key] = table
        else:
            # Gold of a game is replaced, and copied to the unified table: rows of two refreshes are no sum.
            replaced = table.layer == Layer.UNIFIED or is_gold(table.layer)
            found[key] = merge(replace(before, rows=0) if replaced else before, table)
    return list(found.values())


@dataclass(frozen=True)
class RuleReport:
    """Evaluation of one rule on one game's rows in this run.

    `layer`, `game`, `rule`, `action`, `sql`: the rule and its table. `rows`: rows evaluated. `violated`: rows for which the
    rule is not TRUE.
    """

    layer: str
    game: str
    rule: str
    action: str
    sql: str
    rows: int = merged(add, int)
    violated: int = merged(add, int)


def rules_dict(rules: Mapping[tuple[str, str, str], RuleReport]) -> list[dict[str, object]]:
    """Each rule over all games, with the games that violate it."""
    found: dict[tuple[str, str], list[RuleReport]] = {}
    for entry in rules.values():
        found.setdefault((entry.layer, entry.rule), []).append(entry)
    return [
        {
            "layer": layer,
            "rule": rule,
            "action": entries[0].action,
            "rows": sum(e.rows for e in entries),
            "violated": sum(e.violated for e in entries),
            "violated_by_game": {e.game: e.violated for e in entries if e.violated},
        }
        for (layer, rule), entries in sorted(found.items())
    ]


@dataclass
class RuleCounts(Summed):
    """Evaluation of a layer's rules on one game's rows, as the workers count it.

    Attributes:
        rows: rows evaluated.
        violated: rule -> rows that violate it.
        reasons: rule -> rows that are added to quarantine.
        dropped, held, readmitted: rows left out; in quarantine already; accepted although quarantine has them.
        examples: rule with the action fail -> coordinates of a row that violates it.
    """

    rows: int = merged(add, int)
    violated: Counter[str] = merged(add_counts, Counter)
    reasons: Counter[str] = merged(add_counts, Counter)
    dropped: int = merged(add, int)
    held: int = merged(add, int)
    readmitted: int = merged(add, int)
    examples: dict[str, str] = merged(lambda first, second: second | first, dict)

    @property
    def quarantined(self) -> int:
        """Rows that are in quarantine instead of in the table."""
        return self.held + sum(self.reasons.values())
