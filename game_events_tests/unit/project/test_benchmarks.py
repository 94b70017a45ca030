"""The benchmarks' own arithmetic: settings, what a lakehouse holds, saved results, generated pages, the formula."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from benchmarks.arena import settings_for
from benchmarks.figures import Figure, Target
from benchmarks.lakes import bytes_below, contents, require
from benchmarks.output import Result
from benchmarks.page import other_commits, page, scenarios
from benchmarks.scale import Formula, disagreements, parts

OPTIONS = {"events": 1_000, "pairs": 3, "seconds": 10, "quick": False}
MACHINE: dict[str, Any] = {"commit": "a" * 40, "cores": 2}


@pytest.fixture
def lakehouse(tmp_path: Path) -> Path:
    """Five events of two games in every layer."""
    events = pa.table({"gamer_id": ["x", "y", "y", "z", "z"]})
    write_deltalake(str(tmp_path / "bronze_events"), events)
    write_deltalake(str(tmp_path / "silver_a"), events.slice(0, 3))
    write_deltalake(str(tmp_path / "silver_b"), events.slice(3))
    for name, counts in {"gold_a": [1, 2], "gold_b": [2], "gold_unified": [1, 2, 2]}.items():
        write_deltalake(str(tmp_path / name), pa.table({"session_count": pa.array([9] * len(counts), pa.int64())}))
        write_deltalake(str(tmp_path / name), pa.table({"session_count": pa.array(counts, pa.int64())}), mode="overwrite")
    return tmp_path


def test_settings_of_a_benchmark_are_defaults_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", os.environ | {"GAME_EVENTS_KAFKA_TOPIC": "mine", "GAME_EVENTS_POLL_INTERVAL_S": "77"})
    (tmp_path / ".env").write_text("GAME_EVENTS_POLL_INTERVAL_S=78\n")
    monkeypatch.chdir(tmp_path)

    settings = settings_for(tmp_path, "theirs", tmp_path / "lake")

    assert settings.kafka_topic == "theirs"
    assert settings.poll_interval_s not in (77, 78)


def test_contents_are_those_of_the_newest_versions(lakehouse: Path) -> None:
    found = contents(lakehouse)
    assert (found.bronze, found.silver, found.gold, found.unified) == (5, 5, 5, 5)
    assert (found.gold_tables, found.gamers) == (2, 3)


def test_one_gold_table_of_all_games_is_its_own_unified_table(lakehouse: Path) -> None:
    for name in ("gold_a", "gold_b"):
        shutil.rmtree(lakehouse / name)
    found = require(lakehouse, 5, "a peer")
    assert (found.gold_tables, found.gamers) == (1, 3)


def test_contents_follow_a_compaction(lakehouse: Path) -> None:
    table = str(lakehouse / "bronze_events")
    write_deltalake(table, pa.table({"gamer_id": ["w"]}), mode="append")
    DeltaTable(table).optimize.compact()
    assert contents(lakehouse).bronze == 6


@pytest.mark.parametrize("layer", ["bronze_events", "silver_a", "gold_b", "gold_unified"])
def test_a_layer_without_all_events_shows_no_figure(lakehouse: Path, layer: str) -> None:
    column = "session_count" if "gold" in layer else "gamer_id"
    kind = pa.int64() if "gold" in layer else pa.string()
    more = pa.table({column: pa.array([1] if "gold" in layer else ["w"], kind)})
    write_deltalake(str(lakehouse / layer), more, mode="append")
    with pytest.raises(RuntimeError, match="5 events in every layer"):
        require(lakehouse, 5, "a peer")


def test_a_file_with_two_names_is_written_once(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"12345")
    (tmp_path / "two").hardlink_to(tmp_path / "one")
    (tmp_path / "other").write_bytes(b"123")
    assert bytes_below(tmp_path) == 8


def result_of(figures: list[Figure], name: str = "graph") -> Result:
    found = Result(dict(MACHINE), dict(OPTIONS))
    found.add(name, figures, [], 1.0)
    return found


def test_a_run_goes_on_after_what_was_measured_at_the_same_commit(tmp_path: Path) -> None:
    before = result_of([Figure("a", "s", [1.0, 2.0, 3.0], Target("<=", 2.5))])
    before.add("rules", [Figure("rules", "", error="it failed")], [], 1.0)
    before.save(tmp_path / "out.json")

    again = Result(dict(MACHINE), dict(OPTIONS))
    again.take(tmp_path / "out.json")
    other = Result(MACHINE | {"commit": "b" * 40}, dict(OPTIONS))
    other.take(tmp_path / "out.json")

    assert list(again.scenarios) == ["graph"], "what failed is measured again"
    assert again.figures_of("graph") == [Figure("a", "s", [1.0, 2.0, 3.0], Target("<=", 2.5))]
    assert not other.scenarios


def published(figures: list[Figure], name: str = "graph", **more: object) -> dict[str, Any]:
    found = result_of(figures, name)
    return scenarios({"options": found.options, "machine": found.machine | more, "scenarios": found.scenarios})


def test_what_failed_is_not_published() -> None:
    with pytest.raises(ValueError, match="it failed"):
        published([Figure("graph", "", error="it failed")])


def test_figures_of_a_table_become_its_cells_and_missed_goals_are_shown() -> None:
    figures = [
        Figure("10 games | us | s", "s", [1.0, 2.0, 3.0]),
        Figure("10 games | us | MiB", "MiB", [10.0, 11.0, 12.0], Target("<=", 5)),
        Figure("10 games | them | s", "s", [4.0]),
        Figure("ratio, 10 games", "x", [0.5], Target("<=", 0.4)),
    ]
    text = page("<!-- figures: cold -->\n<!-- end of figures -->\n", published(figures, "cold"))
    assert "| 10 games | s | MiB |\n" in text
    assert "| us | 2 (1..3) | 11; goal <= 5, missed |\n" in text
    assert "| them | 4 |  |\n" in text
    assert "| figure | median | goal |\n|---|---|---|\n| ratio, 10 games | 0.5 | <= 0.4 (missed) |\n" in text


def test_figures_that_share_a_table_on_the_page_become_its_cells_and_say_a_common_goal_once() -> None:
    figures = [
        Figure("produce to gold, p50 (samples: percentiles 1 to 99)", "s", [1.0, 2.0, 3.0], Target("<=", 1.5)),
        Figure("produce to gold, p95", "s", [4.0], Target("<=", 1.5)),
        Figure("cores used", "cores", [0.5], note="10 games"),
    ]
    text = page("<!-- figures: continuous -->\n<!-- end of figures -->\n", published(figures, "continuous"))
    assert (
        "One run: medians of its samples, the lowest and the highest.\n\n| from produce to (s); goal <= 1.5 | p50 | p95 |"
        in text
    )
    assert "| gold | 2 (1..3); missed | 4; missed |\n" in text
    assert "| figure | median | note |\n|---|---|---|\n| cores used (cores) | 0.5 | 10 games |\n" in text


def test_numbers_of_games_are_columns() -> None:
    figures = [Figure("bronze, 10 games", "s", [1.0]), Figure("bronze, 100 games", "s", [2.0]), Figure("all / one", "x", [3.0])]
    text = page("<!-- figures: bronze -->\n<!-- end of figures -->\n", published(figures, "bronze"))
    assert "| figure | 10 games | 100 games | median |\n" in text
    assert "| bronze (s) | 1 | 2 |  |\n" in text


def test_the_page_says_once_how_it_was_measured_and_where_a_scenario_differs() -> None:
    both = (
        published([], "rules") | published([], "bronze") | published([Figure("one game", "s", [1.0])], "games", commit="b" * 40)
    )
    text = page("".join(f"<!-- figures: {name} -->\n<!-- end of figures -->\n" for name in ("how", "games")), both)
    assert f"2 cores, 1,000 events, commit {'a' * 10}, " in text
    assert f"-->\nCommit {'b' * 10}.\n" in text


def test_scenarios_of_different_commits_are_reported_unless_they_are_excepted() -> None:
    both = published([]) | published([], "rules", commit="b" * 40)
    assert len(other_commits(both, {})) == 1
    assert not other_commits(both, {"rules": "measured on two machines"})
    assert not other_commits(published([]) | published([], "rules"), {})


MODEL = [
    Figure("bronze: constant", "s", [0.5]),
    Figure("bronze: rows", "s a million", [2.0]),
    Figure("silver: games", "ms a game", [5.0]),
    Figure("silver: made", "ms a new game", [10.0]),
    Figure("gold: old", "s a million", [0.25]),
    Figure("5 new rows of 10 games: error of the formula", "x", [0.02], note="2.42 s for 2.37 s"),
]


def test_the_formula_adds_what_the_layers_take() -> None:
    formula = Formula.of(published(MODEL, "model")["model"])
    assert formula.seconds(games=100, made=10, rows=1_000_000, old=2_000_000) == pytest.approx(0.5 + 0.5 + 0.1 + 2.0 + 0.5)


@pytest.mark.parametrize(("measured", "problems"), [(0.66, 0), (0.8, 0), (1.5, 1), (0.4, 1)])
def test_the_formula_must_predict_the_first_loads(measured: float, problems: int) -> None:
    """0.5 s + 10 * 15 ms + 1,000 rows * 2 us = 0.652 s."""
    first = Figure("10 games | this project | s", "s", [measured])
    other = Figure("10 games, every event distinct | this project | s", "s", [99.0])
    both = published(MODEL, "model") | published([first, other])
    assert len(disagreements(both)) == problems


def test_the_formula_and_the_first_loads_are_of_one_commit() -> None:
    first = Figure("10 games | this project | s", "s", [0.652])
    both = published(MODEL, "model") | published([first], commit="b" * 40)
    assert "measure both at one" in disagreements(both)[0]


def test_the_scale_page_is_made_of_the_published_constants() -> None:
    found = parts(published(MODEL, "model") | published([Figure("10 games | this project | s", "s", [0.7])]))
    assert "bronze    0.50 + 2.00 per million rows\n" in found["formula"]
    assert "together  0.50 + 0.0050 * games + 0.0100 * new games + 2.00 per million rows" in found["formula"]
    assert "0.65 s for 0.70 s | 7% |" in found["formula_checked"]
    assert "| 1 TB a day | 57,870 |" in found["daily"]


def test_nothing_measured_is_said() -> None:
    text = page("<!-- figures: rules -->\nold\n<!-- end of figures -->\n", {})
    assert text == "<!-- figures: rules -->\nNot measured yet.\n<!-- end of figures -->\n"
