"""Another definition of the game: each command says what has to be made anew, and one command does it."""

import re

import pytest

from game_events_tests.support.reconciliation import count
from game_events_tests.support.worlds.waves import send

pytestmark = [
    # Dagster 1.13 calls its own deprecated property for every nested resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]


def test_a_changed_definition_stops_runs_until_one_command_has_made_all_rows_anew(cli, environment, spark, monkeypatch):  # noqa: ARG001
    sent = send(environment, version=2)
    assert cli("run").code == 0
    monkeypatch.setenv("GAME_EVENTS_ENTITY", "game_name || '_eu'")
    for command in (("run", "--json"), ("run", "--dry-run", "--json"), ("doctor", "--json")):
        said = cli(*command)
        assert said.code == 1, said.everything
        assert "`game-events redecode --downstream` makes all of them again" in " ".join(said.everything.split())
    checks = {check["check"]: check for check in said.result["checks"]}
    assert made_by(checks["definitions"]["detail"]) == (sent.decodable, {f"{game}_eu" for game in sent.records})
    done = cli("redecode", "--downstream", "--json")
    assert done.code == 0, done.everything
    assert done.result["redecoded_rows"] == sent.decodable
    again = cli("run", "--json")
    assert again.code == 0, again.everything
    for game, versions in sent.records.items():
        rows = sum(versions.values())
        assert (count(environment, f"silver_{game}_events"), count(environment, f"silver_{game}_eu_events")) == (0, rows)
        assert count(environment, f"gold_{game}_player_agg") == 0
        assert count(environment, f"gold_{game}_eu_player_agg") == len(sent.truth[game])
    checks = {check["check"]: check for check in cli("doctor", "--json").result["checks"]}
    assert checks["definitions"]["ok"]
    assert not checks["definitions"]["look"]
    assert made_by(checks["definitions"]["detail"]) == (sent.decodable, {f"{game}_eu" for game in sent.records})


def made_by(detail):
    """Rows that doctor has tried, and the names that it says the expression gives."""
    said = re.match(r"game_name: game_name \|\| '_eu'\. Of (\d+) rows of bronze_events they make game_name ('[^;.]*')", detail)
    assert said, detail
    return int(said[1]), set(said[2].replace("'", "").split(", "))
