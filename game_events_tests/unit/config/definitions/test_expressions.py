"""Expressions of settings: what they may hold, and what is read of them."""

import duckdb
import pytest

from game_events.config.definitions.computed import HEADERS_NAME
from game_events.config.definitions.expressions import connection, parsed


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("split_part(_kafka_topic, '.', 2)", [("_kafka_topic",)]),
        ("object_meta.name", [("object_meta", "name")]),
        ("_KAFKA_KEY", [("_kafka_key",)]),
        ("coalesce(a.b, _message_type, a.b)", [("a", "b"), ("_message_type",)]),
        ("payload->>'$.game'", [("payload",)]),
        ("payload->'$.game'", [("payload",)]),
        ("get_json_object(payload, '$.game')", [("payload",)]),
        ("list_filter(l, lambda x: x.a > y)[1].z", [("l",), ("y",)]),
        ("[x for x in l if x = 1]", [("l",)]),
        ("CASE WHEN a IS NULL THEN b ELSE c['d'] END", [("a",), ("b",), ("c",)]),
        ("ts::timestamp AT TIME ZONE 'Europe/Berlin'", [("ts",)]),
        ('"at" -- a comment', [("at",)]),
        ("repeat(a, 2) || age(b, c)", [("a",), ("b",), ("c",)]),
        ("'dota'", []),
        ("a BETWEEN b AND interval 1 hour + c", [("a",), ("b",), ("c",)]),
    ],
)
def test_an_expression_of_one_record_says_what_it_reads(text, names):
    assert sorted(parsed(text).names) == sorted(names)
    assert parsed(text).sql == text


def test_headers_are_looked_for_in_their_column_wherever_they_are_named():
    read = parsed("'ü' || \"header\"('a') || HEADER ( header('b'))")
    assert read.sql == "'ü' || _header(_kafka_headers, 'a') || _header(_kafka_headers,  _header(_kafka_headers, 'b'))"
    assert (HEADERS_NAME,) in read.names
    assert list(read.fields()) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "must be one expression"),
        ("a, b", "must be one expression"),
        ("a) , (b", "must be one expression"),
        ("a) WHERE (b", "must be one expression"),
        ("a) LIMIT (1", "must be one expression"),
        ("a) UNION SELECT (b", "must be one expression"),
        ("a FROM t", "no SQL expression"),
        ("a AS b", "no SQL expression"),
        ("a; DROP TABLE t", "no SQL expression"),
        ("a) FROM t --", "no SQL expression"),
        ("at", 'in quotes: "at"'),
        ("(SELECT 1)", "holds a query"),
        ("EXISTS(FROM t)", "holds a query"),
        ("a IN (SELECT 1)", "holds a query"),
        ("row_number() OVER ()", r"a window \(OVER\)"),
        ("*", "a star"),
        ("COLUMNS(*)", "a star"),
        ("$1", "a parameter"),
        ("#1", "a position"),
        ("count(*)", "an aggregate over rows"),
        ("max(a)", "an aggregate over rows"),
        ("geomean(a)", "an aggregate over rows"),
        ("unnest(l)", "unnest .* is refused"),
        ("read_text('/etc/passwd')", "reads or makes tables"),
        ("read_csv('x')", "reads or makes tables"),
        ("pg_get_viewdef(1)", "is refused"),
        ("getenv('HOME')", "there is no such function"),
        ("current_setting('threads')", "not the same each time"),
        ("now()", "not the same each time"),
        ("current_timestamp", "not the same each time"),
        ("current_localtimestamp()", "not the same each time"),
        ("ago(interval 1 day)", "not the same each time"),
        ("age(a)", "depends on the clock"),
        ("random()", "not the same each time"),
        ("uuid()", "not the same each time"),
        ("system.main.lower(a)", "of another schema"),
        ("_raw_value", "there is no _raw_value; there are _kafka_topic"),
        ("_kafka_headers", "there is no _kafka_headers"),
        ("'a'.header()", r"write header\('name'\)"),
        ("header('a', 'b')", r"write header\('name'\)"),
    ],
)
def test_anything_else_is_refused_by_name(text, why):
    with pytest.raises(ValueError, match=why):
        parsed(text)


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("SELECT * FROM read_text('{folder}/secret')", r'Cannot access file ".*/secret" - .* disabled by configuration'),
        ("COPY (SELECT 1) TO '{folder}/out'", r'Cannot access file ".*/out" - .* disabled by configuration'),
        ("INSTALL httpfs", r'Cannot access directory ".*extensions.*" - .* disabled by configuration'),
        ("SET enable_external_access = true", r'"enable_external_access".* has been locked'),
        ("SET threads = 8", r'"threads".* has been locked'),
    ],
)
def test_no_expression_reaches_files_extensions_or_the_settings_of_its_connection(tmp_path, statement, why):
    (tmp_path / "secret").write_text("x")
    with connection() as made:
        with pytest.raises(duckdb.Error, match=why):
            made.execute(statement.format(folder=tmp_path))
        assert made.execute("SELECT current_setting('threads')").fetchall() == [(1,)]
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("timestamp_seconds(1.5)", "1970-01-01 00:00:01.5"),
        ("timestamp_seconds(253402300799)", "9999-12-31 23:59:59"),
        ("timestamp_seconds('1712345678.123456')", "2024-04-05 19:34:38.123456"),
        ("timestamp_millis(1712345678901)", "2024-04-05 19:34:38.901"),
        ("timestamp_millis(-1)", "1969-12-31 23:59:59.999"),
        ("timestamp_micros(CAST(1 AS DECIMAL(20, 0)))", "1970-01-01 00:00:00.000001"),
        ("timestamp_nanos(1712345678901234567)", "2024-04-05 19:34:38.901234"),
        ('get_json_object(\'{"a": {"b": "c"}}\', \'$.a.b\')', "c"),
        ("text('\\xC3\\xBC'::BLOB)", "ü"),
    ],
)
def test_functions_by_sparks_names(sql, value):
    with connection() as made:
        assert made.execute(f"SELECT CAST({sql} AS VARCHAR)").fetchall() == [(value,)]
