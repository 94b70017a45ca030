"""Game, player and time of decoded rows by the SQL expressions of the settings (`config.definitions`), in DuckDB.

One query for each batch and message type, over Arrow columns. A name means the decoded field, of any kind; one that a type
lacks is NULL. A row in which an expression fails has NULL, and is counted; so are all rows of a message type to whose columns
an expression does not fit. Nothing here affects any other column.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from game_events.config.definitions.computed import Computed, Definitions, EntityNames, Expression, is_name
from game_events.decoding.columns import TIMESTAMP_RANGE, ColumnMap, column_of, computed_types
from game_events.decoding.decoder import DecodedBatch, GoodRows
from game_events.decoding.frame import DamageError
from game_events.decoding.json_decoder import converter
from game_events.decoding.json_schema import JsonType
from game_events.decoding.projection import CellBudget
from game_events.lakehouse.data.columns import MESSAGE_TYPE, OWN_COLUMNS
from game_events.workers.results import StagedRows, distinct

if TYPE_CHECKING:
    import duckdb

#: A column of the records of some rows, by bronze's name.
RecordColumn = Callable[[str], pa.Array | pa.ChunkedArray]
_ROWS = "_rows"
_TEXTS = "_texts"
_KEY = "_kafka_key"
#: Kinds of DuckDB that are texts, and whole numbers, which become digits, as those of a decoded key do.
_TEXTS_THEMSELVES = ("VARCHAR", "UUID", '"NULL"')
_WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
#: Times in texts as most are; all others are read as in JSON, where the same text is the same time.
_USUAL_TIME = (
    r"\d{4}-\d\d-\d\d[Tt ]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?([Zz]|[+-](0\d|1[0-4])(:?[0-5]\d)?)(\[[\w+/-]{1,64}\])?"
)
_AS_TIME = r"TRY_CAST(upper(regexp_replace(v, '\[.*', '')) AS TIMESTAMPTZ)"
#: Games of one task whose names are reported, and names of one of them; characters of an error.
GAMES_NOTED = 10_000
NAMES_NOTED = 2
ERROR_CHARS = 300


@dataclass(frozen=True)
class _Query:
    """The query for the rows of message types for which the same expressions count.

    Attributes:
        sql: gives a struct `v` for each column; NULL where the expression has failed.
        columns: what it computes: column -> whether its values are texts that become times.
        fields: name in the query -> column of the decoded rows.
        lacking: names of fields that the type has not, with the types that they have elsewhere.
        own: bronze's names of the records' columns that it reads.
        empty: columns of which no field is known: NULL.
        misfits: column -> why its expression does not fit the columns of this type: NULL, too.
    """

    sql: str
    columns: Mapping[str, bool]
    fields: Mapping[str, str]
    lacking: Mapping[str, pa.DataType]
    own: frozenset[str]
    empty: frozenset[str]
    misfits: Mapping[str, str]

    def rows(self, decoded: pa.Table, count: int, record_column: RecordColumn) -> pa.Table:
        """What it reads; `count`: of rows, which a message without fields has, too."""
        fields = {name: decoded.column(column) for name, column in self.fields.items()}
        lacking = {name: pa.nulls(count, kind) for name, kind in self.lacking.items()}
        own = {name: record_column(name) for name in self.own}
        # It has as many rows as there are, whatever is read.
        return pa.table({"_number": pa.nulls(count, pa.int8()), **fields, **lacking, **own})


class Computation:
    """Computes columns of batches, all with one plan."""

    def __init__(self, definitions: Definitions, columns: ColumnMap) -> None:
        """`columns`: those of the decoded rows of all types."""
        self._definitions = definitions
        self._columns = columns
        self._types = computed_types(definitions)
        zone = definitions.zone
        self._read_time = converter(JsonType("timestamp"), CellBudget(), ZoneInfo(zone) if zone is not None else None)
        self._queries: dict[tuple[tuple[Expression | None, ...], pa.Schema], _Query] = {}
        self._opened: duckdb.DuckDBPyConnection | None = None

    def applied(self, decoded: DecodedBatch, records: pa.RecordBatch | pa.Table, result: StagedRows) -> DecodedBatch:
        """The decoded batch with the computed columns; `records`: all of the batch; `result` gets the counts."""
        decoded.good = [self._computed(good, records, result) for good in decoded.good]
        return decoded

    def _computed(self, good: GoodRows, records: pa.RecordBatch | pa.Table, result: StagedRows) -> GoodRows:
        rows = pa.array(good.rows)

        def record_column(name: str) -> pa.Array | pa.ChunkedArray:
            if name == MESSAGE_TYPE:
                return pa.repeat(pa.scalar(good.message_type, pa.string()), len(rows))
            there = next((n for n in _names_in(name) if n in records.schema.names), None)
            return records.column(there).take(rows) if there else pa.nulls(len(rows), OWN_COLUMNS.field(name).type)

        columns = good.columns
        for name, values in self._values(good.message_type, columns, len(rows), record_column, result).items():
            columns = _with_column(columns, name, values)
        names = self._definitions.names
        entity = self._definitions.entity_column
        if names is not None and entity in columns.column_names and columns.schema.field(entity).type == pa.string():
            columns = _with_column(columns, entity, renamed(columns.column(entity), names, result))
        return good._replace(columns=columns)

    def _values(
        self, message_type: str | None, rows: pa.Table, count: int, record_column: RecordColumn, result: StagedRows
    ) -> dict[str, pa.Array | pa.ChunkedArray]:
        """Column -> its computed values for decoded rows of a message type; columns that are not computed are left out."""
        # Not by the name of the type: records may choose it.
        key = (tuple(item.of(message_type) for item in self._definitions.computed), rows.schema)
        if key not in self._queries:
            self._queries[key] = self._query(*key)
        query = self._queries[key]
        values: dict[str, pa.Array | pa.ChunkedArray] = {}
        for column, why in query.misfits.items():
            result.misfits.setdefault(column, {})[message_type or ""] = why
            result.nulled[column] += count
        for column in (*query.misfits, *query.empty):
            values[column] = pa.nulls(count, self._types[column])
        if query.columns and count:
            answers = self._run(query.sql, query.rows(rows, count, record_column))
            for (column, is_text), of_column in zip(query.columns.items(), answers.columns, strict=True):
                result.fitted.add(column)
                values[column] = self._of_type(column, of_column, result, is_text=is_text)
        return values

    def _of_type(self, column: str, answers: pa.ChunkedArray, result: StagedRows, *, is_text: bool) -> pa.ChunkedArray:
        """The values in a query's answers, in the type of their column; those that have none are counted."""
        given = pc.struct_field(answers, "v")
        values = self._times(given) if is_text else given
        wanted = self._types[column]
        if pa.types.is_timestamp(wanted):
            first, last = (pa.scalar(end, pa.int64()) for end in TIMESTAMP_RANGE)
            numbers = values.cast(pa.timestamp("us", wanted.tz)).cast(pa.int64())
            inside = pc.and_(pc.greater_equal(numbers, first), pc.less_equal(numbers, last))
            values = pc.if_else(inside, numbers, pa.scalar(None, pa.int64())).cast(wanted)
        bad = answers.null_count + values.null_count - given.null_count
        if bad:
            result.nulled[column] += bad
        return values.cast(wanted)

    def _times(self, texts: pa.ChunkedArray) -> pa.ChunkedArray:
        """The times in texts; NULL for what is none."""
        connection = self._connection
        connection.register(_TEXTS, pa.table({"v": texts}))
        sql = f"SELECT CASE WHEN regexp_full_match(v, '{_USUAL_TIME}') THEN {_AS_TIME} END AS v FROM {_TEXTS}"  # noqa: S608
        times = connection.sql(sql).to_arrow_table().column("v")
        is_left = pc.and_(pc.is_valid(texts), pc.is_null(times))
        left = _one_chunk(texts.filter(is_left)).dictionary_encode()
        if not len(left):
            return times
        read = pa.array(map(self._time, left.dictionary.to_pylist()), times.type)
        return pa.chunked_array([pc.replace_with_mask(_one_chunk(times), _one_chunk(is_left), read.take(left.indices))])

    def _time(self, text: str) -> datetime | None:
        """The time in a text, as in JSON; None: there is none."""
        with suppress(DamageError):
            time: datetime = self._read_time(text)
            return time
        return None

    def _query(self, expressions: Sequence[Expression | None], schema: pa.Schema) -> _Query:
        """The query for rows with these columns; `expressions`: of each definition; None: the column is as it was decoded."""
        pairs = zip(self._definitions.computed, expressions, strict=True)
        asked = [(item, sql) for item, sql in pairs if sql is not None]
        read = list(dict.fromkeys(chain.from_iterable(sql.names for _, sql in asked)))
        own = frozenset(first for first, *_ in read if first.startswith("_"))
        fields: dict[str, str] = {}
        lacking: dict[str, pa.DataType] = {}
        unknown = set[str]()
        for first in dict.fromkeys(_plain(first) for first, *_ in read if first not in own):
            here = column_of(first, schema.names)
            elsewhere = column_of(first, self._columns.columns)
            if here is not None:
                fields[first] = here
            elif elsewhere is not None:
                lacking[first] = self._columns.columns[elsewhere]
            else:
                unknown.add(first)
                lacking[first] = _guessed([names[1:] for names in read if _plain(names[0]) == first])
        query = _Query("", {}, fields, lacking, own, frozenset(), {})
        self._connection.register(_ROWS, query.rows(schema.empty_table(), 0, lambda name: _own_column(name).slice(0, 0)))
        return self._bound(query, asked, unknown)

    def _bound(self, query: _Query, asked: Iterable[tuple[Computed, Expression]], unknown: Collection[str]) -> _Query:
        """The query with the expressions that fit its columns; `unknown`: names that no type has."""
        parts: list[str] = []
        columns: dict[str, bool] = {}
        misfits: dict[str, str] = {}
        empty = set[str]()
        for item, sql in asked:
            kind, why = self._kind(item, sql, query.own)
            if why is None:
                parts.append(f"TRY({{'v': CAST({sql.sql} AS {kind})}}) AS _c{len(parts)}")
                columns[item.column] = item.is_time and kind == "VARCHAR"
            elif any(_plain(names[0]) in unknown for names in sql.names):
                empty.add(item.column)
            else:
                misfits[item.column] = why
        sql_text = f"SELECT {', '.join(parts)} FROM {_source(query.own)}"  # noqa: S608 - settings, as parsed
        return replace(query, sql=sql_text, columns=columns, empty=frozenset(empty), misfits=misfits)

    def _kind(self, item: Computed, sql: Expression, own: Collection[str]) -> tuple[str, str | None]:
        """What an expression's values are made to be, and why they cannot; None: they can."""
        import duckdb  # noqa: PLC0415 - as in `connection`

        try:
            query = f"DESCRIBE SELECT TRY({{'v': {sql.sql}}}).v FROM {_source(own)}"  # noqa: S608 - settings, as parsed
            ((_, kind, *_),) = self._connection.execute(query).fetchall()
        except duckdb.Error as error:
            return "", " ".join(str(error).split("LINE 1:")[0].split())[:ERROR_CHARS]
        if item.is_time and kind.startswith("TIMESTAMP"):
            return "TIMESTAMPTZ" if kind.endswith("WITH TIME ZONE") else "TIMESTAMP", None
        is_whole = kind in _WHOLE or (kind.startswith("DECIMAL(") and kind.endswith(",0)"))
        if kind in _TEXTS_THEMSELVES or (is_whole and not item.is_time):
            return "VARCHAR", None
        return "", f"it gives {kind}: {_advice(item, kind)}"

    def _run(self, sql: str, rows: pa.Table) -> pa.Table:
        """The answers for some rows; where they make the query itself fail, all but theirs."""
        import duckdb  # noqa: PLC0415 - as in `connection`

        try:
            self._connection.register(_ROWS, rows)
            return self._connection.sql(sql).to_arrow_table()
        except (duckdb.FatalException, duckdb.InternalException):
            self._opened = None  # that connection answers nothing any more
        except duckdb.Error:  # of memory, for example
            pass
        if rows.num_rows == 1:
            self._connection.register(_ROWS, rows.slice(0, 0))
            schema = self._connection.sql(sql).to_arrow_table().schema
            return pa.table([pa.nulls(1, field.type) for field in schema], schema=schema)
        half = rows.num_rows // 2
        return pa.concat_tables([self._run(sql, rows.slice(0, half)), self._run(sql, rows.slice(half))])

    @property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        if self._opened is None:
            from game_events.config.definitions.expressions import connection  # noqa: PLC0415 - imports DuckDB

            self._opened = connection()
        return self._opened


def renamed(values: pa.ChunkedArray, names: EntityNames, result: StagedRows) -> pa.ChunkedArray:
    """The games that names mean; `result` gets the names of each game that no alias gives."""
    encoded = _one_chunk(values).dictionary_encode()
    given = encoded.dictionary.to_pylist()
    games: list[str] = []
    for name in given:
        alias = names.alias(name)
        game = names.by_rule(name) if alias is None else alias
        if alias is None and names.rule != "keep" and is_name(game) and len(result.named) < GAMES_NOTED:
            result.named[game] = distinct(result.named.get(game, ()), (name,))[:NAMES_NOTED]
        games.append(game)
    return values if games == given else pa.chunked_array([pa.array(games, pa.string()).take(encoded.indices)])


def _one_chunk(values: pa.ChunkedArray) -> pa.Array:
    """All values in one array."""
    return pa.chunked_array([values.combine_chunks()]).chunk(0)


def _plain(name: str) -> str:
    """A name as DuckDB compares names: ASCII's capital letters do not count."""
    return name.encode().lower().decode()


def _guessed(paths: Sequence[tuple[str, ...]]) -> pa.DataType:
    """A type of NULLs for a field of which only the names inside of it are known."""
    inner: dict[str, list[tuple[str, ...]]] = {}
    for path in paths:
        if path:
            inner.setdefault(_plain(path[0]), []).append(path[1:])
    return pa.struct([pa.field(name, _guessed(rest)) for name, rest in inner.items()]) if inner else pa.null()


def _own_column(name: str) -> pa.Array:
    return pa.nulls(1, OWN_COLUMNS.field(name).type)


def _names_in(name: str) -> tuple[str, ...]:
    """What a column of bronze is called in records that are read, and in bronze."""
    return (name.removeprefix("_kafka_") if name.startswith("_kafka_") else name.removeprefix("_"), name)


def _with_column(rows: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    names = [*rows.column_names, *(() if name in rows.column_names else (name,))]
    return pa.table([values if column == name else rows.column(column) for column in names], names)


def _source(own: Collection[str]) -> str:
    """What a query reads from; the record's key as text."""
    return f"(SELECT * REPLACE (TRY(decode({_KEY})) AS {_KEY}) FROM {_ROWS})" if _KEY in own else _ROWS  # noqa: S608


def _advice(item: Computed, kind: str) -> str:
    if kind == "JSON":
        return "take the text by ->> or json_extract_string instead of -> or json_extract"
    if kind == "BLOB":
        return "make it text by text(...)"
    if item.is_time and kind == "DATE":
        return "make it a time by CAST(... AS TIMESTAMP)"
    if item.is_time:
        return "a time is wanted: of a number write timestamp_seconds(...), timestamp_millis(...) or timestamp_micros(...)"
    return "a text is wanted: CAST(... AS VARCHAR)"
