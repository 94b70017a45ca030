"""Assets of one's own get the tables of this graph as what their parameter is annotated with."""

import re
import runpy

import dagster as dg
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame

from game_events.config.settings import SettingsSource
from game_events.definitions import build_defs
from game_events.orchestration.keys import GAMES
from game_events.orchestration.resources import SparkResource, TableLoader
from game_events.plugins.local.producer.produce import produce
from game_events.plugins.local.producer.simulator import Simulation
from game_events_tests.support import reconciliation
from game_events_tests.support.fixtures.dagster import PROJECT, materializations
from game_events_tests.support.keys import GOLD_KEY, SILVER_KEY, UNIFIED_KEY

pytestmark = [
    # Dagster 1.13 calls its own deprecated property for every nested resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]

GAMES_SENT = ("rummy", "spades")
#: A partition added by hand: by its path another table.
WAY_OUT = "rummy_events/../silver_spades"


@pytest.fixture
def refreshed(runs, environment):
    """The pipeline after a run over events of two games."""
    produce(environment, Simulation(games=GAMES_SENT, records_per_game_and_version=40, gamers_per_game=15))
    assert runs.refresh().success
    return runs


def run(runs, defs, asset, game=None):
    """A run of one asset."""
    job = defs.resolve_implicit_global_asset_job_def()
    return job.execute_in_process(
        instance=runs.instance, asset_selection=[dg.AssetKey(asset)], partition_key=game, raise_on_error=False
    )


def shown(result):
    """Metadata of the one materialization."""
    (event,) = materializations(result)
    return {key: value.value for key, value in event.metadata.items()}


def test_the_documents_example_shows_each_games_gamers_with_the_most_sessions(refreshed, environment):
    example = PROJECT / "examples" / "leaderboard" / "definitions.py"
    (shown_code,) = re.findall(r"```python\n(@dg.asset.*?)```", (PROJECT / "docs" / "reading.md").read_text(), re.DOTALL)
    assert shown_code in example.read_text()
    defs = runpy.run_path(str(example))["defs"]()
    top = "SELECT gamer_id, session_count FROM t ORDER BY session_count DESC, gamer_id LIMIT 10"
    for game in GAMES_SENT:
        found = run(refreshed, defs, "leaderboard", game)
        assert found.success
        records = [tuple(record.data.values()) for record in shown(found)["top"].records]
        assert records == reconciliation.rows(environment, f"gold_{game}_player_agg", top)
        assert len(records) == 10


def _asset(kind, rows_of, key=SILVER_KEY, partitions=GAMES):
    def counted(table):
        return dg.MaterializeResult(metadata={"rows": rows_of(table)})

    counted.__annotations__ = {"table": kind, "return": dg.MaterializeResult}
    ins = {"table": dg.AssetIn(key, input_manager_key="tables")}
    return dg.asset(name="counted", partitions_def=partitions, ins=ins)(counted)


def _with(asset):
    return dg.Definitions.merge(build_defs(), dg.Definitions(assets=[asset]))


def test_a_games_table_comes_as_delta_table_arrow_polars_pandas_or_spark(refreshed, environment):
    kinds = {
        DeltaTable: lambda table: sum(table.get_add_actions(flatten=True).column("num_records").to_pylist()),
        pa.Table: lambda table: table.num_rows,
        pl.DataFrame: lambda table: table.height,
        pl.LazyFrame: lambda table: table.select(pl.len()).collect().item(),
        pd.DataFrame: len,
        DataFrame: lambda table: table.count(),
    }
    wanted = reconciliation.count(environment, "silver_rummy_events")
    for kind, rows_of in kinds.items():
        found = run(refreshed, _with(_asset(kind, rows_of)), "counted", "rummy")
        assert found.success, kind
        assert shown(found) == {"rows": wanted}, kind


def test_tables_of_all_games_come_as_a_dictionary_and_a_whole_table_as_itself(refreshed, environment):
    refreshed.instance.add_dynamic_partitions("games", ["has_no_table", WAY_OUT])
    every = _asset(dict[str, pa.Table], lambda found: {game: table.num_rows for game, table in found.items()}, GOLD_KEY, None)
    wanted = {game: reconciliation.count(environment, f"gold_{game}_player_agg") for game in GAMES_SENT}
    assert shown(run(refreshed, _with(every), "counted")) == {"rows": wanted}
    unified = _asset(pa.Table, lambda table: table.num_rows, UNIFIED_KEY, None)
    assert shown(run(refreshed, _with(unified), "counted")) == {"rows": sum(wanted.values())}


def failure(result):
    (event,) = [e for e in result.all_events if e.event_type == dg.DagsterEventType.STEP_FAILURE]
    return str(event.step_failure_data.error)


def test_what_cannot_be_loaded_says_why_and_what_would_work(refreshed):
    refreshed.instance.add_dynamic_partitions("games", ["rumy", WAY_OUT])
    arrow = _with(_asset(pa.Table, lambda table: table.num_rows))
    assert "there is no table 'silver_rumy_events'" in failure(run(refreshed, arrow, "counted", "rumy"))
    assert "a name that no game may have" in failure(run(refreshed, arrow, "counted", WAY_OUT))
    text = _with(_asset(str, len))
    assert "annotate the parameter with deltalake.DeltaTable, pyarrow.Table" in failure(
        run(refreshed, text, "counted", "rummy")
    )
    every = _with(_asset(pa.Table, len, GOLD_KEY, None))
    assert "annotate it with dict[str, ...]" in failure(run(refreshed, every, "counted"))


def test_a_code_location_of_ones_own_names_the_asset_and_has_the_loader(refreshed, environment):
    defs = dg.Definitions(
        assets=[dg.AssetSpec(GOLD_KEY, partitions_def=GAMES), _asset(pa.Table, lambda table: table.num_rows, GOLD_KEY)],
        resources={"tables": TableLoader(spark=SparkResource(), source=SettingsSource())},
    )
    found = shown(run(refreshed, defs, "counted", "spades"))
    assert found == {"rows": reconciliation.count(environment, "gold_spades_player_agg")}
