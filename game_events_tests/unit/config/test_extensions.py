"""What may be declared, and what a bad declaration or a module that cannot be loaded says."""

from __future__ import annotations

import itertools
import sys
import textwrap

import pytest

from game_events.config.extensions import extensions_of, load_extensions
from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError

HEAD = """
from game_events.extending import count, gold_aggregate, max_of, min_of, silver_transformation, sum_of
"""


ONE = "@gold_aggregate('{name}')\ndef f{i}():\n    return {{'n': count()}}\n"


@pytest.fixture
def load(tmp_path):
    """Writes a module, loads it."""
    numbers = itertools.count()

    def write(body, head=HEAD):
        file = tmp_path / f"mine_{next(numbers)}.py"
        file.write_text(head + textwrap.dedent(body))
        return load_extensions([str(file)])

    return write


def definition(found):
    (aggregate,) = found.aggregates
    return aggregate.definition


def test_nothing_is_loaded_that_settings_do_not_name():
    assert load_settings().extensions == ()
    found = load_extensions(())
    assert (found.transformations, found.aggregates, found.rules) == ((), (), ())


def test_settings_name_modules_and_files_separated_by_commas(monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_EXTENSIONS", "mine.py, company.events")
    assert load_settings().extensions == ("mine.py", "company.events")


def test_a_modules_declarations_are_found_in_their_order_and_stay_plain_functions(load):
    found = load("""
        @silver_transformation
        def second(rows):
            return rows

        @silver_transformation(games=["chess"], rows="any")
        def first(rows):
            return rows

        @gold_aggregate("spending", keys=["gamer_id"], interval_s=60)
        def spending():
            "What was spent."
            return {"events": count(), "spent": sum_of("price"), "lowest": min_of("price"), "highest": max_of("price")}

        @gold_aggregate("median", mode="recompute", games=["chess"], description="Half of it.")
        def median(silver):
            "Not this."
            return silver

        from game_events.rules import Rule

        RULES = [Rule(name="a_rule", sql="x")]
        assert first(3) == 3 and median(4) == 4
        """)
    assert [t.name for t in found.transformations] == ["second", "first"]
    assert [(t.applies_to("chess"), t.applies_to("uno")) for t in found.transformations] == [(True, True), (True, False)]
    spending, median = found.aggregates
    assert (spending.description, spending.interval_s, spending.keys) == ("What was spent.", 60, ("gamer_id",))
    assert {c: m.sql for c, m in spending.measures.items()} == {
        "events": "count(1)",
        "spent": "sum(price)",
        "lowest": "min(price)",
        "highest": "max(price)",
    }
    assert (median.description, median.layer, median.asset) == ("Half of it.", "gold:median", "gold_median")
    assert [rule.name for rule in found.rules] == ["a_rule"]
    assert (found.transformed("chess"), found.transformed("uno")) == (True, False)


def test_a_file_is_run_once_in_a_process_and_its_classes_work(tmp_path):
    file = tmp_path / "counted.py"
    file.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nimport sys\n"
        "sys.runs_of_counted = getattr(sys, 'runs_of_counted', 0) + 1\n"
        "@dataclass\nclass Held:\n    n: int\n"
    )
    load_extensions([str(file)])
    load_extensions([str(file)])
    assert sys.runs_of_counted == 1


def test_only_what_decides_its_values_is_part_of_an_aggregates_definition(load):
    one = definition(load("@gold_aggregate('m', keys=['k'])\ndef m():\n    return {'n': count()}"))
    text = "@gold_aggregate('m', keys=['k'], interval_s=9)\ndef other():\n    'Words.'\n    return {'n': count()}"
    assert definition(load(text)) == one
    assert definition(load("@gold_aggregate('m', keys=['k'])\ndef m():\n    return {'n': count('x')}")) != one
    assert definition(load("@gold_aggregate('m', keys=['j'])\ndef m():\n    return {'n': count()}")) != one
    whole = definition(load("@gold_aggregate('m', mode='recompute')\ndef m(rows):\n    return rows.distinct()"))
    text = "@gold_aggregate('m', mode='recompute')\ndef m(rows):\n    'Words.'\n    # more\n    return rows.distinct( )"
    assert definition(load(text)) == whole
    assert definition(load("@gold_aggregate('m', mode='recompute')\ndef m(rows):\n    return rows.limit(1)")) != whole


@pytest.mark.parametrize(
    ("body", "line", "says"),
    [
        ("@silver_transformation(rows='some')\ndef t(rows): ...", 3, "rows='some'"),
        ("@silver_transformation(games=[])\ndef t(rows): ...", 3, "games is empty"),
        ("@gold_aggregate('Bad Name')\ndef t(): return {'n': count()}", 3, "'Bad Name' cannot name a gold aggregate"),
        ("@gold_aggregate('t', mode='upsert')\ndef t(): return {'n': count()}", 3, "'merge' or 'recompute'"),
        ("@gold_aggregate('t', interval_s=0)\ndef t(): return {'n': count()}", 3, "interval_s=0"),
        ("@gold_aggregate('t', keys=['a', 'A'])\ndef t(): return {'n': count()}", 3, "must be distinct names"),
        ("@gold_aggregate('t', keys=['_game', 'a'])\ndef t(): return {'n': count()}", 3, "leave `_game` out"),
        ("@gold_aggregate('t')\ndef t(): return {}", 3, "must give a dictionary"),
        ("@gold_aggregate('t')\ndef t(): return {'median': 'percentile(x)'}", 3, "mode='recompute'"),
        (
            "@gold_aggregate('t')\ndef t(): return {'n': count('DISTINCT device')}",
            3,
            "columns 'n' of gold aggregate t count or sum",
        ),
        ("@gold_aggregate('t')\ndef t(): return {'n': sum_of(' distinct(x)')}", 3, "mode='recompute'"),
        ("@gold_aggregate('t')\ndef t(): return {'n': count('/**/ -- a\\nDISTINCT x')}", 3, "mode='recompute'"),
        ("@gold_aggregate('t')\ndef t(): return {'_n': count()}", 3, "'_n'"),
        ("@gold_aggregate('t', keys=['n'])\ndef t(): return {'N': count()}", 3, "'N' is used twice"),
        ("@gold_aggregate('t')\ndef t(): return 1 / 0", 3, "ZeroDivisionError"),
        ("gold_aggregate('t')(len)", 3, "plain function"),
        ("\n\nimport no_such_module", 5, "ModuleNotFoundError"),
        ("def t(:", 3, "SyntaxError"),
        ("raise SystemExit(3)", 3, "SystemExit"),
        ("RULES = 3", None, "must be a list"),
        ("RULES = ['amount > 0']", None, "list of game_events.rules.Rule"),
    ],
)
def test_a_bad_declaration_names_file_line_and_what_is_wrong(body, line, says, load, tmp_path):
    with pytest.raises(ConfigurationError, match="GAME_EVENTS_EXTENSIONS") as raised:
        load(body)
    assert says in str(raised.value)
    file = tmp_path / "mine_0.py"
    assert (f"{file}:{line}" if line else str(file)) in str(raised.value)


@pytest.mark.parametrize("name", ["nowhere.py", "no.such.package"])
def test_a_module_that_is_not_there_is_named(name):
    with pytest.raises(ConfigurationError, match=f"GAME_EVENTS_EXTENSIONS: .*{name}"):
        load_extensions([name])


@pytest.mark.parametrize(
    "names",
    [
        ("player_agg",),
        ("agg",),  # game x_player: gold_x_player_agg
        ("top_player_agg",),
        ("c", "c"),
        ("c", "b_c"),  # gold_a_b_c: game a_b or game a?
        ("b_c", "c"),
    ],
)
def test_names_whose_tables_could_be_another_games_are_refused(names, load):
    body = "".join(ONE.format(name=n, i=i) for i, n in enumerate(names))
    with pytest.raises(ConfigurationError, match="names are ambiguous"):
        load(body)


@pytest.mark.parametrize("noun", ["devices", "all_devices"])
def test_an_aggregate_of_ones_own_takes_no_table_of_the_built_in_ones_noun(noun, tmp_path):
    for name in ("devices", "by_hour"):
        (tmp_path / f"{name}.py").write_text(HEAD + ONE.format(name=name, i=0))
    settings = load_settings(names={"aggregate": noun}, extensions=[str(tmp_path / "devices.py")])
    with pytest.raises(
        ConfigurationError, match=rf"gold aggregate devices .* gold aggregate {noun} \(`aggregate` in GAME_EVENTS"
    ):
        extensions_of(settings)
    (other,) = extensions_of(settings.model_copy(update={"extensions": (str(tmp_path / "by_hour.py"),)})).aggregates
    assert other.name == "by_hour"


def test_names_that_only_look_alike_are_let_in(load):
    body = "".join(ONE.format(name=n, i=i) for i, n in enumerate(("c", "bc", "c_b")))
    assert len(load(body).aggregates) == 3


def test_installed_modules_are_named_by_their_name_and_what_they_import_counts_as_their_own(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "shared_parts.py").write_text(HEAD + ONE.format(name="shared", i=0))
    (tmp_path / "company_events.py").write_text(f"from shared_parts import f0\n{HEAD}" + ONE.format(name="mine", i=1))
    found = load_extensions(["company_events", "shared_parts"])
    assert [a.name for a in found.aggregates] == ["shared", "mine"]
