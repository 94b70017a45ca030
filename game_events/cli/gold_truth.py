"""Gold compared with the producer's own account of what it sent, column by column."""

from __future__ import annotations

import math
from collections.abc import Callable

from game_events.gold_columns import simple_call
from game_events.lakehouse.reading import read_arrow
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.aggregates import expressions
from game_events.producer.manifest import GamerTruth, Manifest
from game_events.settings import Settings

Truth = Callable[[GamerTruth], object]


def truths(settings: Settings) -> dict[str, Truth | None]:
    """Gold's columns, and what the manifest says each must be; None: it does not say."""
    sql = settings.gold_columns or expressions(settings)
    return {column: _truth(settings, text) for column, text in sql.items()}


def differences(settings: Settings, manifest: Manifest) -> list[str]:
    """Where gold differs from what was sent; empty if nowhere."""
    wrong: list[str] = []
    lakehouse, key = Lakehouse.of(settings), settings.key_column
    known = {column: truth for column, truth in truths(settings).items() if truth is not None}
    for entity, keys in manifest.truth.items():
        table = lakehouse.gold(entity)
        handle = table.open()
        rows = read_arrow(table, handle).to_pylist() if handle is not None else []
        held = {row[key]: tuple(row[column] for column in known) for row in rows}
        sent = {name: tuple(truth(t) for truth in known.values()) for name, t in keys.items()}
        wrong += [
            f"{entity}/{name}: {held.get(name)} is not {sent.get(name)}"
            for name in sorted(held.keys() | sent.keys())
            if not _same(held.get(name), sent.get(name))
        ]
    return wrong


def _truth(settings: Settings, sql: str) -> Truth | None:
    function, of = simple_call(sql) or ("", "")
    # Other columns may be NULL.
    if function == "count" and of in ("*", "1", settings.entity_column, settings.key_column, settings.time_column):
        return lambda truth: truth.session_count
    if of == settings.time_column:
        return {"min": lambda t: t.min_timestamp, "max": lambda t: t.max_timestamp}.get(function)
    # Of other fields the manifest knows the numeric ones; it says so by having them.
    found: dict[str, Truth] = {
        "sum": lambda t: t.numbers[of].total,
        "min": lambda t: t.numbers[of].low,
        "max": lambda t: t.numbers[of].high,
        "avg": lambda t: t.numbers[of].total / t.session_count,
    }
    generator = settings.producer.fields.get(of)
    return found.get(function) if generator is not None and generator.numeric else None


def _same(held: tuple[object, ...] | None, sent: tuple[object, ...] | None) -> bool:
    if held is None or sent is None:
        return held is sent
    return all(
        # A sum of floating point numbers depends on the order in which they come.
        math.isclose(a, b, rel_tol=1e-9) if isinstance(a, float) and isinstance(b, int | float) else a == b
        for a, b in zip(held, sent, strict=True)
    )
