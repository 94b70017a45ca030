"""`game-events init`: what it writes works, and it overwrites nothing."""

import re

import pytest

from game_events.cli.output import Output
from game_events.config.settings import load_settings
from game_events.lakehouse.tables import Lakehouse
from game_events.plugins.local import demo
from game_events.plugins.local.demo import _GOLD_COLUMNS
from game_events.plugins.local.producer.messages import MessageShape

OPTIONS = ("--domain", "weather", "--entity", "station", "--key", "sensor_id", "--time", "measured_at")


@pytest.fixture
def folder(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli("init", "mine", *OPTIONS).code == 0
    return tmp_path / "mine"


def test_it_writes_settings_a_message_and_a_readme_whose_commands_exist(cli, folder, monkeypatch):
    assert {path.name for path in folder.iterdir()} == {"game_events.yaml", "weather.proto", "README.md"}
    monkeypatch.chdir(folder)
    settings = load_settings()
    assert tuple(settings.gold_columns) == _GOLD_COLUMNS
    assert (settings.entity_column, settings.key_column, settings.time_column) == ("station", "sensor_id", "measured_at")
    lakehouse = Lakehouse.of(settings)
    assert (lakehouse.silver("north").name, lakehouse.gold("north").name) == ("silver_north_weather", "gold_north_sensors")
    shape = MessageShape.of(settings)
    assert shape.versions.message_class(1).DESCRIPTOR.full_name == "weather.v1.Weather"
    for text in (path.read_text() for path in folder.iterdir()):
        assert "$" not in text
    for command in re.findall(r"^game-events ([a-z ]+?) +#", (folder / "README.md").read_text(), re.MULTILINE):
        assert cli(*command.split(), "--help").code == 0


def test_it_overwrites_nothing(cli, folder):
    (folder / "game_events.yaml").unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    again = cli("init", "mine", *OPTIONS)
    assert again.code == 1
    assert "weather.proto" in again.err
    assert "nothing was written" in again.err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--domain", "../up"), "--domain: '../up' must be lower case"),
        (("--entity", "Site"), "--entity: 'Site' must be lower case"),
        (("--key", "value"), "none of them value or kind"),
        (("--key", "site"), "three names"),
        (("--key", "events"), "gold has a column 'events' already"),
        (("--entity", "last_seen"), "gold has a column 'last_seen' already"),
        (("--entity", "on"), "--entity: 'on' must be"),
        (("--time", "select"), "--time: 'select' must be"),
        (("--time", "col_custom_3"), "three names"),
    ],
)
def test_names_that_cannot_be_are_refused(cli, tmp_path, monkeypatch, options, says):
    monkeypatch.chdir(tmp_path)
    said = cli("init", "mine", *options)
    assert said.code == 1
    assert says in said.err
    assert not (tmp_path / "mine").exists()


@pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning")
def test_the_demo_of_what_it_wrote_is_exact(environment, folder, spark, monkeypatch, capfd):  # noqa: ARG001
    monkeypatch.chdir(folder)
    report = demo._waves(Output(as_json=False), load_settings())
    said = capfd.readouterr().out
    assert report["success"] is True, said
    assert "gold of 40 sensors in 4 stations equals what the producer sent: yes" in said
    assert report["columns_compared"] == ["events", "first_seen", "last_seen", "highest_value", "sum_of_values"]
    assert "by station" in said
    names = {path.name for path in (folder.parent / "lakehouse").iterdir()}
    assert {"bronze_weather", "silver_east_weather", "gold_east_sensors", "gold_unified_sensors"} <= names
    assert not [name for name in names if "game" in name or "player" in name or name.endswith("_events")]
