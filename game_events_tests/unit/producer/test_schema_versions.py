"""The version texts."""

from pathlib import Path

import pytest

from game_events.errors import ConfigurationError
from game_events.producer import schema_versions
from game_events.producer.schema_versions import BUILT_IN, MAX_VERSION, compile_text, custom_columns

ROOT = Path(__file__).parents[3]


def test_the_packaged_proto_is_the_readable_one():
    packaged = Path(schema_versions.__file__).with_name("game_event.proto")
    assert packaged.read_bytes() == (ROOT / "protos" / "game_event.proto").read_bytes()


@pytest.mark.parametrize("version", range(1, MAX_VERSION + 1))
def test_each_version_compiles_with_its_columns(version):
    fields = BUILT_IN.message_class(version).DESCRIPTOR.fields
    base = ["game_name", "gamer_id", "event_timestamp", "device_id"]
    assert [field.name for field in fields] == base + [f"col_custom_{index}" for index in range(version)]
    assert [field.number for field in fields] == list(range(1, 5 + version))
    assert all(field.has_presence for field in fields[4:]), "an unset custom column must differ from an empty one"


def test_a_version_only_appends_to_the_one_before():
    for version in range(2, MAX_VERSION + 1):
        before, now = BUILT_IN.text(version - 1).splitlines(), BUILT_IN.text(version).splitlines()
        assert now[: len(before) - 1] == before[:-1]
        assert len(now) == len(before) + 1


@pytest.mark.parametrize("version", [0, -1, MAX_VERSION + 1])
def test_other_versions_are_refused_by_name(version):
    with pytest.raises(ConfigurationError, match=rf"version {version} does not exist"):
        custom_columns(version)


def test_a_bad_text_is_a_configuration_error():
    with pytest.raises(ConfigurationError, match="does not compile"):
        compile_text("message {")
