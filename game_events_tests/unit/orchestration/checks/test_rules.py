"""The checks of rules that were changed since the UI has loaded the definitions; no Spark."""

import dagster as dg
import pytest
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.definitions.definitions_load_context import DefinitionsLoadContext, DefinitionsLoadType
from dagster._core.definitions.reconstruct import (
    initialize_repository_def_from_pointer,
    reconstruct_repository_def_from_pointer,
)

from game_events.orchestration.checks import REMOVED
from game_events_tests.support.keys import SILVER_KEY

POSITIVE = "- {name: positive, sql: 'n > 0', action: fail}"
SMALL = "- {name: small, sql: 'n < 9', action: fail}"


@pytest.fixture
def location(tmp_path, monkeypatch):
    """A code location that Dagster loads; the settings' file is read by it and by each run's process."""
    monkeypatch.chdir(tmp_path)
    before = DefinitionsLoadContext._instance
    pointer = ModuleCodePointer("game_events.definitions", "defs", str(tmp_path))

    class Location:
        def rules(self, *rules):
            (tmp_path / "game_events.yaml").write_text("\n".join(["rules:", *rules]) if rules else "{}")

        def load(self):
            self.loaded = initialize_repository_def_from_pointer(pointer)

        def checks(self):
            """What the UI selects with silver."""
            return {key for key in self.loaded.asset_graph.asset_check_keys if key.name.startswith("rule_")}

        def in_run(self):
            """The job of a run by hand, in the run's process, as the UI asks for it."""
            found = reconstruct_repository_def_from_pointer(pointer, self.loaded.repository_load_data)
            assert DefinitionsLoadContext.get().load_type == DefinitionsLoadType.RECONSTRUCTION
            job = found.get_implicit_global_asset_job_def()
            return job.get_subset(asset_selection={SILVER_KEY}, asset_check_selection=self.checks())

    yield Location()
    DefinitionsLoadContext._instance = before


def test_a_run_by_hand_starts_whatever_rules_were_removed_added_or_changed_since_the_definitions_were_loaded(location):
    location.rules(POSITIVE, SMALL)
    location.load()
    assert {key.name for key in location.checks()} == {"rule_positive", "rule_small"}
    location.rules(SMALL.replace("9", "99"), "- {name: new, sql: 'n <> 5'}")
    assert location.in_run()
    location.rules()
    assert location.in_run()


def test_without_a_reload_nothing_else_is_kept_of_a_removed_rule(location):
    location.rules(POSITIVE)
    location.load()
    location.rules()
    graph = location.in_run().asset_layer.asset_graph
    assert graph.get_check_spec(dg.AssetCheckKey(SILVER_KEY, "rule_positive")).description == REMOVED
    location.load()
    assert location.checks() == set()
