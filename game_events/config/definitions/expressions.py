"""SQL expressions of one record, for the settings `entity`, `key` and `time`: in DuckDB's SQL, parsed by DuckDB itself.

Who writes settings is no author of code: an expression reads its record and nothing else. So it is parsed when settings are
read, and may hold nothing but scalar functions that give the same value each time. It is evaluated by
`game_events.workers.computed`, in a connection that reaches neither files nor the network.

DuckDB is imported at the first expression.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from game_events.config.definitions.computed import HEADERS_NAME, OWN_NAMES, Expression

if TYPE_CHECKING:
    import duckdb

#: Functions of Spark by their names there, and those that records need.
MACROS = (
    "timestamp_seconds(x) AS make_timestamp(CAST(CAST(x AS DECIMAL(24, 6)) * 1000000 AS BIGINT))",
    "timestamp_millis(x) AS epoch_ms(CAST(x AS BIGINT))",
    "timestamp_micros(x) AS make_timestamp(CAST(x AS BIGINT))",
    "timestamp_nanos(x) AS make_timestamp(CAST(x AS BIGINT) // 1000)",
    "get_json_object(document, path) AS json_extract_string(document, path)",
    "text(bytes) AS decode(bytes)",
    # Kafka's lastHeader: of several headers with one name the last one counts. What is no UTF-8 is NULL.
    "_header(headers, name) AS TRY(decode(list_filter(headers, lambda h: h.key = name)[-1].value))",
)
#: What has one of these in it is no expression of one record.
_REFUSED_CLASSES = {
    "SUBQUERY": "a query",
    "WINDOW": "a window (OVER)",
    "STAR": "a star",
    "PARAMETER": "a parameter",
    "POSITIONAL_REFERENCE": "a position (#1)",
    "DEFAULT": "DEFAULT",
}
#: The clock, and what tells of this process, although DuckDB says that the value is always the same.
_CHANGING = re.compile(r"current_.*|ago|today|now|version|__internal.*|pg_.*|unnest|generate_subscripts|regexp_split_to_table")
_CLOCK_NAMES = ("current_timestamp", "current_date", "current_time", "localtime", "localtimestamp", "user", "session_user")


def connection(memory: str = "512MB") -> duckdb.DuckDBPyConnection:
    """A connection in which expressions are evaluated: one thread, bounded memory, no files, no network, no extensions."""
    import duckdb  # noqa: PLC0415 - 90 ms that only expressions need

    closed = (
        "enable_external_access",
        "autoinstall_known_extensions",
        "autoload_known_extensions",
        "python_enable_replacements",
    )
    options: dict[str, str | bool | int | float | list[str]] = dict.fromkeys(closed, False)
    options |= {"threads": 1, "memory_limit": memory, "temp_directory": ""}
    made = duckdb.connect(config=options)
    made.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
    # It would evaluate what two expressions share outside of their TRY.
    made.execute("SET disabled_optimizers = 'common_subexpressions'")
    for macro in MACROS:
        made.execute(f"CREATE MACRO {macro}")
    made.execute("SET lock_configuration = true")
    return made


def require_zone(zone: str) -> None:
    """ValueError: DuckDB does not know this time zone."""
    import duckdb  # noqa: PLC0415 - as above

    with connection() as made:
        try:
            made.execute("SELECT timezone(?, TIMESTAMP '2026-01-01')", [zone]).fetchall()
        except duckdb.Error as error:
            raise ValueError(f"DuckDB, which evaluates expressions, does not know the time zone {zone}") from error


@cache
def parsed(text: str) -> Expression:
    """The expression in a text; ValueError says what is wrong with it."""
    beginning = "SELECT (\n"
    answer = _parse(f"{beginning}{text}\n)")
    if answer["error"]:
        hint = f'; write a name that is a word of SQL in quotes: "{text}"' if text.isidentifier() else ""
        raise ValueError(f"{text!r} is no SQL expression: {answer['error_message']}{hint}")
    wanted = _only_value(answer["statements"])
    if wanted is None:
        raise ValueError(f"{text!r} must be one expression of a record: a value, without FROM, WHERE, AS or a second value")
    reading = _Reading(text, len(beginning))
    reading.visit(wanted)
    return Expression(text, reading.sql(), tuple(dict.fromkeys(reading.names)))


def _parse(sql: str) -> dict[str, Any]:
    """A statement as DuckDB parses it."""
    with connection() as parser:
        ((parts,),) = parser.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
    return dict(json.loads(parts))


def _only_value(statements: list[Any]) -> dict[str, Any] | None:
    """The value of a SELECT that has nothing else."""
    node = statements[0]["node"] if len(statements) == 1 else {}
    values = node.get("select_list", [])
    rest = ("modifiers", "where_clause", "group_expressions", "group_sets", "having", "sample", "qualify")
    if node.get("type") != "SELECT_NODE" or len(values) != 1 or any(node[part] for part in rest) or node["cte_map"]["map"]:
        return None
    is_row = values[0].get("function_name") == "row"
    return None if node["from_table"]["type"] != "EMPTY" or is_row else dict(values[0])


@cache
def _functions() -> Mapping[str, Sequence[tuple[str, str | None, str | None]]]:
    """Name of a function -> kind, stability and (of a macro) definition of each of that name."""
    functions = defaultdict[str, list[tuple[str, str | None, str | None]]](list)
    with connection() as parser:
        query = "SELECT DISTINCT function_name, function_type, stability, macro_definition FROM duckdb_functions()"
        for name, *of_name in parser.execute(query).fetchall():
            functions[name].append(tuple(of_name))
    return functions


@cache
def _refusal(function: str) -> str | None:
    """Why an expression may not call a function; None: it may."""
    name = function.lower()
    known = _functions().get(name, ())
    if not known:
        return "there is no such function"
    if any(kind in ("aggregate", "window") for kind, _, _ in known):
        return "it is an aggregate over rows, and an expression has one record"
    if _CHANGING.fullmatch(name) or any(stability not in ("CONSISTENT", None) for _, stability, _ in known):
        return "its value is not the same each time, or not of the record"
    # Some have the name of a table function, too, which no expression can call.
    if all(kind not in ("scalar", "macro") for kind, _, _ in known):
        return "it reads or makes tables"
    definitions = [definition for kind, _, definition in known if kind == "macro" and definition is not None]
    return next((why for definition in definitions if (why := _refusal_in(definition))), None)


def _refusal_in(macro: str) -> str | None:
    """Why an expression may not hold what a macro is made of; None: it may."""
    for part in _nodes(_parse(f"SELECT ({macro})")):
        if part.get("class") in _REFUSED_CLASSES:
            return f"it holds {_REFUSED_CLASSES[part['class']]}"
        called = part.get("function_name")
        why = _refusal(called) if called else None
        if why is not None:
            return why
    return None


def _nodes(part: object) -> Iterator[Mapping[str, Any]]:
    """All parts of a parsed statement."""
    if isinstance(part, dict):
        yield part
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _nodes(inner)


class _Reading:
    """Reads a parsed expression: what it may not hold, its names, and where `header` is called."""

    def __init__(self, text: str, offset: int) -> None:
        self.names: list[tuple[str, ...]] = []
        self._text = text
        self._bytes = text.encode()
        self._offset = offset
        self._calls: list[int] = []

    def visit(self, part: object, bound: frozenset[str] = frozenset()) -> None:
        """Read a part; `bound`: parameters of the lambdas around it."""
        if isinstance(part, list):
            for inner in part:
                self.visit(inner, bound)
        if not isinstance(part, dict):
            return
        refused = _REFUSED_CLASSES.get(part.get("class", ""))
        if refused is not None:
            raise ValueError(f"{self._text!r} holds {refused}: it must be an expression of one record")
        if part.get("class") == "COLUMN_REF":
            self._name(part["column_names"], bound)
        if part.get("class") == "FUNCTION":
            self._function(part)
        if part.get("class") == "LAMBDA" and part["syntax_type"] == "LAMBDA_KEYWORD":
            parameters = [p["column_names"][0] for p in _nodes(part["lhs"]) if p.get("class") == "COLUMN_REF"]
            self.visit(part["expr"], bound | frozenset(map(str.lower, parameters)))
            return
        for inner in part.values():
            self.visit(inner, bound)

    def _name(self, names: list[str], bound: frozenset[str]) -> None:
        first = names[0].lower()
        if first in bound:
            return
        if first in _CLOCK_NAMES:
            raise ValueError(f"{names[0]} in {self._text!r} is not the same each time, or not of the record")
        if first.startswith("_") and first not in OWN_NAMES:
            raise ValueError(f"{self._text!r}: there is no {names[0]}; there are {', '.join(OWN_NAMES)} and header('name')")
        self.names.append((first, *names[1:]) if first in OWN_NAMES else tuple(names))

    def _function(self, part: Mapping[str, Any]) -> None:
        name = part["function_name"]
        if name.lower() == "header" and not part["schema"]:
            self._header(part)
            return
        why = "it is of another schema" if part["schema"] or part["catalog"] else _refusal(name)
        if name.lower() == "age" and len(part["arguments"]) == 1:
            why = "its value depends on the clock"
        if why is not None:
            raise ValueError(f"{name} in {self._text!r} is refused: {why}")

    def _header(self, part: Mapping[str, Any]) -> None:
        start = int(part["query_location"]) - self._offset
        call = re.match(rb'"?header"?\s*\(', self._bytes[start:], re.IGNORECASE) if start >= 0 else None
        places = [inner["expression"]["query_location"] for inner in part["arguments"]]
        # Not 'game'.header(), where the name comes first.
        if call is None or len(places) != 1 or places[0] < part["query_location"]:
            raise ValueError(f"{self._text!r}: write header('name'): the text of the header of that name")
        self._calls.append(start)
        self.names.append((HEADERS_NAME,))

    def sql(self) -> str:
        """The expression, in which a header is looked for in its column."""
        written = self._bytes
        for start in sorted(self._calls, reverse=True):
            rest = written[start:].split(b"(", 1)[1]
            written = written[:start] + b"_header(" + HEADERS_NAME.encode() + b", " + rest
        return written.decode()
