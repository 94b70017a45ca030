"""A run over very many games writes a bounded number of events, and says of how many games it wrote none."""

import dagster as dg
import pytest

from game_events.orchestration.events import summaries, with_event
from game_events.orchestration.keys import DEFAULT, log_planned
from game_events.pipeline.reporting.result import TableReport


def entries(*games, rows=1):
    found = [TableReport(layer, f"{layer}_{g}", "/x", g, rows=rows) for layer in ("silver", "gold") for g in games]
    return [TableReport("bronze", "bronze_events", "/x"), *found, TableReport("unified", "unified", "/x")]


@pytest.fixture
def logged(instance):
    """Log events of tables."""

    def log(found):
        for entry in found:
            event = dg.AssetMaterialization(DEFAULT.layer(entry.layer), partition=entry.game)
            instance.report_runless_asset_event(event)
        return found

    return log


def test_of_very_many_games_those_get_an_event_that_have_waited_longest(instance, logged):
    few = entries("a", "b")
    assert logged(with_event(instance, few, DEFAULT, most=4)) == few
    many = entries("a", "b", "c", "d")
    first = with_event(instance, many, DEFAULT, most=4)
    assert [(e.layer, e.game) for e in logged(first) if e.game] == [(x, g) for x in ("silver", "gold") for g in ("c", "d")]
    assert [e.layer for e in first if e.game is None] == ["bronze", "unified"], "these have one in each run"
    second = with_event(instance, many, DEFAULT, most=4)
    assert {(e.layer, e.game) for e in second if e.game} == {(x, g) for x in ("silver", "gold") for g in ("a", "b")}


def test_a_game_that_never_had_an_event_gets_one_whatever_the_number(instance, logged):
    """Else its partition would be shown as missing."""
    many = entries("a", "b", "c")
    assert logged(with_event(instance, many, DEFAULT, most=2)) == many
    assert len([e for e in with_event(instance, many, DEFAULT, most=2) if e.game]) == 2


def test_a_game_that_had_failed_gets_one_whatever_the_number_too(instance, logged):
    """Else it would stay failed in Dagster, though its table is right by now."""
    many = entries("a", "b", "c", "d", "e")
    logged(many)

    @dg.op
    def plans(context):
        log_planned(context, DEFAULT.silver, "a")

    dg.GraphDefinition("some", node_defs=[plans]).to_job().execute_in_process(instance=instance)
    logged(entries("b", "c", "d", "e"))
    logged([e for e in entries("a") if e.layer == "gold"])
    chosen = [(e.layer, e.game) for e in with_event(instance, many, DEFAULT, most=1) if e.game]
    assert ("silver", "a") in chosen
    assert len(chosen) <= 2


def test_what_has_no_event_of_its_own_is_counted_in_one(instance, logged):
    many = entries("a", "b", "c", rows=5)
    logged(many)
    chosen = with_event(instance, many, DEFAULT, most=2)
    found = {event.asset_key: event.metadata for event in summaries(many, chosen, DEFAULT)}
    without = {key: data["games_changed_without_event"].value for key, data in found.items()}
    assert sum(without.values()) == 4
    assert sum(data["rows_committed"].value for data in found.values()) == 20
    assert summaries(many, many, DEFAULT) == []
