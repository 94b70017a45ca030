"""Declarative automation: what is materialized by hand is carried down to the unified table with no further click.

One condition, on the last table. Its run brings silver, gold and the unified table up to date for every game that has news, and
logs those games only. Conditions on the partitioned assets themselves would start a run for each contiguous range of changed
games and layer, mark every game of a range as materialized, and let one failed game hold up the others of its range.
"""

from typing import Any

import dagster as dg

from game_events.orchestration.graph import Graph
from game_events.orchestration.keys import DEFAULT, Keys
from game_events.orchestration.runs.tags import CARRIES_ALL, REASON

Condition = dg.AutomationCondition[Any]


def carry_condition(keys: Keys = DEFAULT) -> Condition:
    """True when a layer above was updated by a run that did not itself carry on, until a run that does is requested.

    Held back while a layer is being written, and while a blocking check of one fails.
    """
    condition = dg.AutomationCondition
    # Of the newest run that updated it: whatever came before that one, it has carried on too. (`all_new_updates_have_run_tags`
    # is never true on the first tick after an empty event log: a fresh `make up` would start a run too many.)
    by_carrier = condition.executed_with_tags(tag_values=CARRIES_ALL)
    by_hand = condition.newly_updated() & ~by_carrier

    def any_of(wanted: Condition) -> Condition:
        """True if it is for any layer above."""
        bronze, silver, gold = (condition.asset_matches(key, wanted) for key in (keys.bronze, keys.silver, keys.gold))
        return bronze | silver | gold

    blocked = condition.any_checks_match(condition.check_failed(), blocking_only=True)
    # Of a carrier and bronze by hand between two looks, it is not known which came first: rather a run too many than none. (Not
    # of silver and gold: of a run of several partitions Dagster 1.13 knows the tags of some only.)
    done = condition.newly_requested() | (condition.newly_updated() & by_carrier)
    carried = done & ~condition.asset_matches(keys.bronze, by_hand)
    return any_of(by_hand).since(carried) & ~any_of(condition.in_progress()) & ~condition.in_progress() & ~any_of(blocked)


def build_automation(graph: Graph) -> dg.AutomationConditionSensorDefinition:
    """The sensor over the condition."""
    keys = graph.keys
    return dg.AutomationConditionSensorDefinition(
        keys.named("automation"),
        # The export is asked for by a sensor of its own.
        target=dg.AssetSelection.assets(keys.unified),
        default_status=graph.sensor_status,
        minimum_interval_seconds=15,
        run_tags={**graph.tags, **CARRIES_ALL, REASON: "a layer was materialized by hand"},
        description="Carries what was materialized by hand down to the unified table, in one run.",
    )
