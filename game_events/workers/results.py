"""What workers report to the driver, and how the reports of several tasks, or of several steps of a run, become one.

The metadata of each dataclass field names the function that merges two of its values. Workers count records per tenth of a
second while they decode them, so that no second Spark job is needed for their latency.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache
from itertools import chain
from operator import add, or_
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import pyarrow as pa

from game_events.config.type_names import game_of
from game_events.decoding.decoder import DecodedBatch, TypeKey
from game_events.decoding.frame import RegistrySchema
from game_events.decoding.unframed.inferred import merged_texts
from game_events.decoding.unframed.topics import SchemaName
from game_events.errors import LostFileError, TransientError
from game_events.lakehouse.data.staging import StagedFile, discard, remove_empty_folder
from game_events.lakehouse.storage import explain
from game_events.lakehouse.tables import Table
from game_events.sources.source import Offsets

Merge = Callable[[Any, Any], Any]

R = TypeVar("R")


def extend(first: Iterable[Any], second: Iterable[Any]) -> list[Any]:
    """Concatenation."""
    return [*first, *second]


def latest(first: Any, second: Any) -> Any:  # noqa: ANN401, ARG001
    """The second value."""
    return second


def newest(first: Any, second: Any) -> Any:  # noqa: ANN401
    """The second value; None keeps the first one."""
    return first if second is None else second


def distinct(first: Iterable[Any], second: Iterable[Any]) -> list[Any]:
    """Both sequences without duplicates, in the order of the first occurrence."""
    return list(dict.fromkeys([*first, *second]))


def add_counts(first: Mapping[Any, int], second: Mapping[Any, int]) -> Mapping[Any, int]:
    """Sum of each key's counts."""
    return Counter(first) + Counter(second) if second else first


#: Names of message types under which rows are counted; records of topics without a schema choose how many there are.
MOST_TYPES = 1_000
#: Rows of types of which less rows came than of these.
OTHER_TYPES = "(others)"


def add_types(first: Mapping[str, int], second: Mapping[str, int]) -> Mapping[str, int]:
    """Sum of each type's rows, of at most `MOST_TYPES`."""
    counts = Counter(add_counts(first, second))
    if len(counts) <= MOST_TYPES:
        return counts
    others = counts.pop(OTHER_TYPES, 0)
    kept = Counter(dict(counts.most_common(MOST_TYPES - 1)))
    return kept + Counter({OTHER_TYPES: others + counts.total() - kept.total()})


def by_key(merge_values: Merge) -> Merge:
    """Merge of two mappings: values under one key are merged."""

    def merge_mappings(first: Mapping[Any, Any], second: Mapping[Any, Any]) -> Mapping[Any, Any]:
        news = {key: merge_values(first[key], value) if key in first else value for key, value in second.items()}
        return {**first, **news} if news else first

    return merge_mappings


def merge(first: R, second: object) -> R:
    """`first` with the values of `second`, which may have fewer fields, merged in."""
    return replace(first, **merged_values(first, second))  # type: ignore[type-var]


def merge_all(merge_values: Callable[[R, R], R], values: Sequence[R]) -> R:
    """The values merged in their order, neighbours first: a value that grows is copied log n times, not n times."""
    while len(values) > 1:
        pairs = zip(values[::2], values[1::2], strict=False)
        values = [*(merge_values(first, second) for first, second in pairs), *values[len(values) & ~1 :]]
    return values[0]


def merged_fields(result: object) -> Mapping[str, Merge]:
    """Field -> function that merges two of its values."""
    return _merged_fields(type(result))  # type: ignore[arg-type]  # a class can be hashed


@cache
def _merged_fields(kind: type[Any]) -> Mapping[str, Merge]:
    return {f.name: f.metadata["merge"] for f in fields(kind) if "merge" in f.metadata}


def merged_values(first: object, second: object) -> dict[str, Any]:
    """Field -> merged value, for the fields of `second`."""
    return {name: add(getattr(first, name), getattr(second, name)) for name, add in merged_fields(second).items()}


class Summed:
    """A mutable dataclass of `merged` fields, to which others are added."""

    def add(self, other: Self) -> None:
        """Merge the values of another one into this one."""
        for name, value in merged_values(self, other).items():
            setattr(self, name, value)

    @classmethod
    def sum(cls, results: Iterable[Self]) -> Self:
        """All of them together."""
        return merge_all(merge, [cls(), *results])


def plain(value: Any) -> Any:  # noqa: ANN401 - JSON
    """The value for `--json`; None: the key is left out."""
    if is_dataclass(value) and not isinstance(value, type):
        return value.to_dict() if hasattr(value, "to_dict") else asdict(value)
    return dict(value) if isinstance(value, Mapping) else value


class Event(NamedTuple):
    """Rows of `event_log` for a count: one if it is not 0, or one for each name; with the key of a table, if there is one."""

    kind: str
    layer: str
    table: str | None = None


def merged(
    merge_values: Merge,
    factory: Callable[[], Any],
    *,
    json: Callable[[Any], Any] | None = plain,
    event: Event | None = None,
    asset: tuple[str, str, Callable[[Any], Any]] | None = None,
    printed: str | None = None,
) -> Any:  # noqa: ANN401 - a field of the type that the class declares
    """A field of a result, with its merge function and the factory of its default.

    `json`: value -> value in `--json` (a result of None leaves the key out); `event`: rows of the event log; `asset`: layer,
    key, and value -> value in the metadata of that layer's materialization in Dagster; `printed`: meaning of the value, for a
    line at the end of `game-events run`. Empty values are not shown in the last three.
    """
    shown = {"json": json, "event": event, "asset": asset, "printed": printed}
    return field(default_factory=factory, metadata={"merge": merge_values, **shown})


#: Tenth of a second since 1970 (UTC) in which records were produced -> how many.
Arrivals = Counter[int]
TENTHS = 10

#: Ages from which records are counted per minute and per hour, so that a backlog does not make the count large.
FINE_S = 600
COARSE_S = 86_400


def count_arrivals(timestamps: pa.Array, now_s: float | None = None) -> Arrivals:
    """Number of records per time of production. `timestamps`: `_kafka_timestamp`; `now_s`: seconds since 1970."""
    tenths = timestamps.cast(pa.int64(), safe=False).drop_null().to_numpy() // (1_000_000 // TENTHS)
    age = int((time.time() if now_s is None else now_s) * TENTHS) - tenths
    minute = 60 * TENTHS
    hour = 3600 * TENTHS
    rounded = np.where(age > FINE_S * TENTHS, tenths // minute * minute, tenths)
    rounded = np.where(age > COARSE_S * TENTHS, tenths // hour * hour, rounded)
    values, counts = np.unique(rounded, return_counts=True)
    return Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))


@dataclass
class RuleCounts(Summed):
    """Evaluation of a layer's rules on one game's rows, as the workers count it.

    Attributes:
        rows: rows evaluated.
        violated: rule -> rows that violate it.
        reasons: rule -> rows that are added to quarantine.
        dropped, held, readmitted: rows left out; in quarantine already; accepted although quarantine has them.
        duplicates, duplicates_readmitted: rows that were sent twice; those of them that quarantine has, and the rules let in.
        examples: rule with the action fail -> coordinates of a row that violates it.
    """

    rows: int = merged(add, int)
    violated: Counter[str] = merged(add_counts, Counter)
    reasons: Counter[str] = merged(add_counts, Counter)
    dropped: int = merged(add, int)
    held: int = merged(add, int)
    readmitted: int = merged(add, int)
    duplicates: int = merged(add, int)
    duplicates_readmitted: int = merged(add, int)
    examples: dict[str, str] = merged(lambda first, second: second | first, dict)

    @property
    def quarantined(self) -> int:
        """Rows that are in quarantine instead of in the table."""
        return self.held + sum(self.reasons.values())


@dataclass
class FanOutResult(Summed):
    """What the workers return. Where message types have tables of their own, what each table is called (`type_names.of_type`).

    Attributes:
        files: table -> its files.
        refused: why -> name -> rows that belong to no game.
        failed: game -> why its files could not be written; its other files must not be committed.
        rejected: game -> its files for quarantine.
        counts: table -> counts of its rows by the rules; empty without rules.
        columns: table -> the optional columns of its files; empty without a choice.
        types: game -> the tables of its message types that had rows.
        crowded: a worker met more new names than `Routing.room`, or more games than `FanOut.most_games`: nothing was kept.
        partials: partial rows of gold, of each task (`PartialRows`).
    """

    files: dict[str, list[StagedFile]] = merged(by_key(extend), dict)
    refused: dict[str, Counter[str]] = merged(by_key(add_counts), dict)
    failed: dict[str, str] = merged(or_, dict)
    rejected: dict[str, list[StagedFile]] = merged(by_key(extend), dict)
    counts: dict[str, RuleCounts] = merged(by_key(merge), dict)
    columns: dict[str, frozenset[str]] = merged(by_key(or_), dict)
    types: dict[str, frozenset[str]] = merged(by_key(or_), dict)
    crowded: bool = merged(or_, bool)
    partials: list[pa.Table] = merged(extend, list)

    @property
    def games(self) -> set[str]:
        """Games that had rows, rejected or not."""
        return set(map(game_of, chain(self.files, self.counts))) - set(self.failed)

    def tables(self, game: str) -> list[str]:
        """What the tables of a game that may have had rows are called, its own one last."""
        return [*sorted(self.types.get(game, ())), game]

    def rows(self, game: str) -> int:
        """Rows that a game had, rejected or not."""
        return sum(
            self.counts[name].rows if name in self.counts else sum(f.rows for f in self.files.get(name, []))
            for name in self.tables(game)
        )

    def rules(self, game: str) -> RuleCounts | None:
        """The counts of all rows of a game by the rules; None without rules."""
        counted = [self.counts[name] for name in self.tables(game) if name in self.counts]
        return RuleCounts.sum(counted) if counted else None

    def write_alone(self, name: str, table: Table, write: Callable[[], object]) -> None:
        """Write to a table; an error fails its game only, unless the object store is unavailable for all games."""
        game = game_of(name)
        if game in self.failed:
            return
        try:
            write()
        except LostFileError as error:
            self.failed[game] = str(error)
        except OSError as error:
            known = explain(error, table.uri)
            if isinstance(known, TransientError):
                raise
            self.failed[game] = f"its files cannot be written: {known or error}"

    def discard(self, table: Callable[[str], Table]) -> None:
        """Delete the files, which no commit names, and the folders of tables that were not made; `table`: that of a name."""
        for name, files in self.files.items():
            discard(table(name), files)
            remove_empty_folder(table(name))


#: Rows whose message type is not known, among those by type: no full name is that.
NO_TYPE = "(none)"


@dataclass
class StagedRows(Summed):
    """What workers return of a micro-batch, or of stored rows.

    Attributes:
        bronze, quarantine: files.
        types, unknown: pairs of schema id and index path that were decoded; that the plan does not know.
        reasons: why rows are in quarantine.
        arrivals: when the records were produced (only of records from Kafka).
        suppressed: rows of erased people, which are in no file.
        suppressed_records: of stored rows: (topic id, partition, offset, batch) of these.
        schemas: that files brought and the plan does not know.
        origins: of records from files, an archive's too: split -> offset after the last one.
        undecoded: rows of message types that are not selected; they are in bronze's files.
        nulled: column -> bad values that became NULL.
        unknown_names: names of schemas, of topics without frames, that the plan does not know.
        grown: topic without a schema -> type of members that the plan does not know.
        rescued: topic without a schema -> rows with values that do not fit their columns.
        by_type: full name of a message type -> rows in bronze's files; `NO_TYPE`: of none that is known.
        incomplete: number of records that were read without what no column can hold; `examples` names some of them.
        silver: silver's files of the same rows, where the job writes them (`OnePassTask`).
        fitted: computed columns of which an expression fitted some message type.
        misfits: computed column -> message type -> why its expression does not fit.
        named: game -> names that the rule for names made this game, not an alias.
    """

    bronze: list[StagedFile] = merged(extend, list)
    quarantine: list[StagedFile] = merged(extend, list)
    types: set[TypeKey] = merged(or_, set)
    unknown: set[TypeKey] = merged(or_, set)
    reasons: Counter[str] = merged(add_counts, Counter)
    arrivals: Arrivals = merged(add_counts, Counter)
    suppressed: int = merged(add, int)
    suppressed_records: list[tuple[str, int, int, int]] = merged(extend, list)
    schemas: list[RegistrySchema] = merged(extend, list)
    origins: Offsets = merged(by_key(max), dict)
    undecoded: Counter[TypeKey] = merged(add_counts, Counter)
    nulled: Counter[str] = merged(add_counts, Counter)
    unknown_names: set[SchemaName] = merged(or_, set)
    grown: dict[str, str] = merged(by_key(merged_texts), dict)
    rescued: Counter[str] = merged(add_counts, Counter)
    by_type: Counter[str] = merged(add_types, Counter)
    incomplete: int = merged(add, int)
    examples: list[str] = merged(extend, list)
    silver: FanOutResult = merged(merge, FanOutResult)
    fitted: set[str] = merged(or_, set)
    misfits: dict[str, dict[str, str]] = merged(by_key(or_), dict)
    named: dict[str, list[str]] = merged(by_key(distinct), dict)

    @property
    def is_planned(self) -> bool:
        """Whether the plan had all that was needed; else the driver plans again, and what was written is not kept."""
        return not (self.unknown or self.unknown_names or self.grown)

    def note(self, decoded: DecodedBatch) -> None:
        """Add what a decoded batch says besides its rows."""
        self.types |= decoded.types
        self.unknown |= decoded.unknown
        self.unknown_names |= decoded.unknown_names
        self.nulled.update(decoded.nulled)
        self.rescued.update(decoded.rescued)
        self.grown = by_key(merged_texts)(self.grown, decoded.grown)

    def discard(self, bronze: Table, quarantine: Table | None) -> None:
        """Delete the files; none of them is in a commit."""
        discard(bronze, self.bronze)
        if quarantine is not None:
            discard(quarantine, self.quarantine)
