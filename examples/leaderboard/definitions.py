"""The pipeline with an asset of one's own behind it: the ten gamers of each game with the most sessions."""

import dagster as dg
import pyarrow as pa

from game_events.definitions import build_defs
from game_events.orchestration.keys import GAMES, GOLD_KEY


@dg.asset(
    partitions_def=GAMES,
    ins={"gold": dg.AssetIn(GOLD_KEY, input_manager_key="tables")},
    automation_condition=dg.AutomationCondition.eager(),
)
def leaderboard(gold: pa.Table) -> dg.MaterializeResult[None]:
    """The ten gamers of a game with the most sessions, read from the game's gold table."""
    ordered = gold.sort_by([("session_count", "descending"), ("gamer_id", "ascending")])
    top = ordered.select(["gamer_id", "session_count"]).slice(0, 10).to_pylist()
    return dg.MaterializeResult(metadata={"top": dg.MetadataValue.table([dg.TableRecord(row) for row in top])})


@dg.definitions
def defs() -> dg.Definitions:
    """What Dagster loads: `dagster dev -f examples/leaderboard/definitions.py`."""
    return dg.Definitions.merge(build_defs(), dg.Definitions(assets=[leaderboard]))
