"""What a user's words select; tables are there by name only, and neither Kafka nor Spark is asked."""

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from game_events.config.extensions import Extensions
from game_events.errors import ConfigurationError
from game_events.extending import GoldAggregate, count
from game_events.lakehouse.tables import REFRESHED
from game_events.pipeline.context import Pipeline
from game_events.pipeline.runs.refresh import EVERYTHING, selection_of
from game_events_tests.support.pipelines import without_spark

ALL_OF_IT = dict.fromkeys(REFRESHED)
CHESS, POKER = frozenset({"chess"}), frozenset({"poker"})


@pytest.fixture
def pipeline(tmp_path):
    for game in ("chess", "poker"):
        write_deltalake(str(tmp_path / f"silver_{game}_events"), pa.table({"a": [1]}))
    return without_spark(tmp_path)


def test_nothing_asked_for_is_everything_and_replaces_nothing(pipeline):
    assert selection_of(pipeline) == EVERYTHING
    assert (EVERYTHING.update, EVERYTHING.full, EVERYTHING.everything) == (ALL_OF_IT, {}, True)


@pytest.mark.parametrize(
    ("asked", "everything"),
    [
        ({}, True),
        ({"select": ["all"]}, True),
        ({"full_refresh": ["gold"]}, True),
        ({"select": ["gold", "all"], "full_refresh": ["all"]}, True),
        ({"select": list(REFRESHED)}, False),
        ({"games": ["chess"]}, False),
        ({"full_refresh": ["all"], "games": ["chess", "poker"]}, False),
    ],
)
def test_a_run_is_over_everything_if_the_user_leaves_out_nothing_whatever_else_there_is(pipeline, asked, everything):
    assert selection_of(pipeline, **asked).everything is everything
    pipeline.__dict__["extensions"] = Extensions(aggregates=(GoldAggregate("sessions", "merge", measures={"n": count()}),))
    assert selection_of(pipeline, **asked).everything is everything


@pytest.mark.parametrize(
    ("words", "update"),
    [
        (["gold", "bronze"], {"bronze": None, "gold": None}),
        (["bronze_events"], {"bronze": None}),
        (["quarantine_events"], {"bronze": None}),
        (["silver_events", "gold_unified_player_agg"], {"silver": None, "unified": None}),
        (["gold_player_agg"], {"gold": None}),
        (["gold_poker_player_agg", "silver_chess_events"], {"silver": CHESS, "gold": POKER}),
        (["silver_chess_events", "silver_poker_events"], {"silver": CHESS | POKER}),
        (["silver_chess_events", "silver"], {"silver": None}),
        (["all"], ALL_OF_IT),
    ],
)
def test_layers_assets_and_tables_are_selected_in_the_order_of_the_layers(pipeline, words, update):
    found = selection_of(pipeline, words)
    assert found.update == update
    assert list(found.update) == [layer for layer in REFRESHED if layer in update]


def test_games_narrow_silver_and_gold(pipeline):
    assert selection_of(pipeline, games=["chess"]).update == ALL_OF_IT | {"silver": CHESS, "gold": CHESS}
    assert selection_of(pipeline, ["silver"], ["poker"]).update == {"silver": POKER}
    assert selection_of(pipeline, ["gold_chess_player_agg", "bronze"], ["chess"]).update == {"bronze": None, "gold": CHESS}
    full = selection_of(pipeline, full_refresh=["all"], games=["chess"])
    assert (full.full, full.notices) == ({"silver": CHESS, "gold": CHESS}, ())


def test_what_is_replaced_is_part_of_the_run(pipeline):
    found = selection_of(pipeline, ["gold"], full_refresh=["silver_chess_events"])
    assert (found.update, found.full) == ({"silver": CHESS, "gold": None}, {"silver": CHESS})
    whole = selection_of(pipeline, full_refresh=["silver_chess_events"])
    assert (whole.update, whole.full) == (ALL_OF_IT, {"silver": CHESS})


def test_all_spares_bronze_with_a_notice_unless_the_setting_allows_it(pipeline):
    found = selection_of(pipeline, full_refresh=["all"])
    assert list(found.full) == ["silver", "gold", "unified"]
    assert "GAME_EVENTS_ALLOW_BRONZE_FULL_REFRESH" in found.notices[0]
    named = selection_of(pipeline, full_refresh=["all", "bronze"])
    assert (list(named.full), named.notices) == (list(REFRESHED), ())
    allowed = Pipeline(pipeline.settings.model_copy(update={"allow_bronze_full_refresh": True}), pipeline.get_spark)
    assert (selection_of(allowed, full_refresh=["all"]).full, named.notices) == (ALL_OF_IT, ())


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"select": ["slver"]}, r"--select: there is no 'slver'\. There are the layers bronze, silver, gold, unified"),
        ({"select": ["silver_ches_events"]}, "games: chess, poker"),
        ({"select": ["gold_unified_events"]}, "gold_{game}_player_agg"),
        ({"select": ["gold_ludo_player_agg"]}, "games: chess, poker"),
        ({"games": ["chess", "ludo"]}, "--games: there is no 'ludo'; games: chess, poker"),
        ({"full_refresh": ["broze"]}, "--full-refresh: there is no 'broze'"),
        ({"select": ["silver_chess_events"], "games": ["poker"]}, "silver_chess_events is of none of the games of --games"),
    ],
)
def test_a_name_that_there_is_not_is_an_error_that_lists_those_that_there_are(pipeline, asked, says):
    with pytest.raises(ConfigurationError, match=says):
        selection_of(pipeline, **asked)


@pytest.mark.usefixtures("pipeline")
def test_games_of_the_allow_list_are_known_before_they_have_tables_and_no_others_are(tmp_path):
    listed = without_spark(tmp_path, games=("chess", "ludo"))
    assert selection_of(listed, games=["ludo"]).update["silver"] == {"ludo"}
    with pytest.raises(ConfigurationError, match="games: chess, ludo"):
        selection_of(listed, games=["poker"])


def test_an_empty_lakehouse_says_that_there_are_no_games_yet(tmp_path):
    empty = without_spark(tmp_path / "none")
    with pytest.raises(ConfigurationError, match="there are no games yet: the first run finds them"):
        selection_of(empty, games=["chess"])
    assert not (tmp_path / "none").exists()


def test_aggregates_of_ones_own_are_selected_by_asset_by_table_and_with_gold(pipeline):
    own = GoldAggregate("sessions", "merge", keys=("gamer_id",), measures={"n": count()})
    pipeline.__dict__["extensions"] = Extensions(aggregates=(own,))
    assert selection_of(pipeline, ["gold"]).update == {"gold": None, "gold:sessions": None}
    assert selection_of(pipeline, ["gold_player_agg"]).update == {"gold": None}
    assert selection_of(pipeline, ["gold_sessions"]).update == {"gold:sessions": None}
    assert selection_of(pipeline, ["gold_chess_sessions", "silver"], ["chess"]).update == {
        "silver": CHESS,
        "gold:sessions": CHESS,
    }
    assert list(selection_of(pipeline).update) == [*REFRESHED, "gold:sessions"]
    with pytest.raises(ConfigurationError, match=r"gold_\{game\}_sessions"):
        selection_of(pipeline, ["gold_sesions"])
