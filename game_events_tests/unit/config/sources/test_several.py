"""Settings of several sources: own values over those of the top level, by every way that settings come; secrets are hidden."""

import json

import pytest

from game_events.config.masking import mask
from game_events.config.settings import load_settings, misspelt
from game_events.config.sources.several import registry_names, settings_of_each, settings_or_each
from game_events.errors import ConfigurationError
from game_events.pipeline.event_log import _masked_settings


def each(**settings):
    return settings_of_each(load_settings(**settings))


def test_without_sources_there_is_one_and_it_is_the_top_level():
    settings = load_settings(kafka_topic="a")
    assert settings_of_each(settings) == {}
    assert settings_or_each(settings) == [settings]


def test_a_source_takes_from_the_top_level_what_it_does_not_set():
    found = each(
        kafka_topic="games", schema_registry_url="http://a", sources={"eu": {}, "us": {"schema_registry_url": "http://b/"}}
    )
    assert [(s.kafka_topic, s.schema_registry_url, s.sources) for s in found.values()] == [
        ("games", "http://a", {}),
        ("games", "http://b", {}),
    ]


@pytest.mark.parametrize(
    ("top", "own", "shown"),
    [
        ({"kafka_topic_pattern": "a.*"}, {"kafka_topic": "b"}, ("b", None, {})),
        ({"kafka_assign": {"a": [0]}}, {"kafka_topic_pattern": "b.*"}, ("game_events", "b.*", {})),
        ({"kafka_topic": "a"}, {"kafka_assign": {"b": [1]}}, ("game_events", None, {"b": [1]})),
        ({"kafka_topic_pattern": "a.*"}, {"consumer_group": "g"}, ("game_events", "a.*", {})),
    ],
)
def test_a_source_that_names_its_topics_takes_none_from_the_top_level(top, own, shown):
    (one,) = each(**top, sources={"eu": own}).values()
    assert (one.kafka_topic, one.kafka_topic_pattern, one.kafka_assign) == shown


def test_where_a_source_starts_is_its_own_choice():
    (one,) = each(starting_timestamp="2026-01-01T00:00:00Z", sources={"eu": {"starting_offsets": "latest"}}).values()
    assert (one.starting_timestamp, one.starting_offsets) == (None, "latest")


def test_a_file_a_variable_and_a_variable_of_one_setting_are_merged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "game_events.yaml").write_text("sources:\n  eu: {kafka_topic: a}\n  us: {kafka_topic: b}\n")
    monkeypatch.setenv("GAME_EVENTS_SOURCES", json.dumps({"us": {"schema_registry_url": "http://us"}}))
    monkeypatch.setenv("GAME_EVENTS_SOURCES__US__KAFKA_OPTIONS", json.dumps({"sasl.password": "s3cret-of-us"}))
    (tmp_path / ".env").write_text("GAME_EVENTS_SOURCES__EU__CONSUMER_GROUP=watchers\n")
    found = each()
    assert [(s.kafka_topic, s.consumer_group) for s in found.values()] == [("a", "watchers"), ("b", None)]
    assert found["us"].kafka_options["sasl.password"].get_secret_value() == "s3cret-of-us"
    assert found["us"].schema_registry_url == "http://us"
    assert misspelt() == []


def test_no_other_setting_is_given_in_parts(monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_NAMES__ENTITY", "shop")
    monkeypatch.setenv("GAME_EVENTS_SOURCES__EU__KAFKA_TOPC", "a")
    assert any("GAME_EVENTS_NAMES__ENTITY is no setting" in text for text in misspelt())
    with pytest.raises(ConfigurationError, match="'kafka_topc' is no setting of a source"):
        load_settings()
    monkeypatch.delenv("GAME_EVENTS_SOURCES__EU__KAFKA_TOPC")
    assert load_settings().names.entity == "game"


def test_a_secrets_folder_has_what_no_variable_should(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "game_events.yaml").write_text("sources: {eu: {schema_registry_user: u}}\n")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "game_events_sources").write_text(json.dumps({"eu": {"schema_registry_password": "from-a-file"}}))
    monkeypatch.setenv("GAME_EVENTS_SECRETS_DIR", str(tmp_path / "secrets"))
    (one,) = each().values()
    assert one.schema_registry_user == "u"
    assert one.schema_registry_password.get_secret_value() == "from-a-file"


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ({"EU": {}}, "small letters"),
        ({"a__b": {}}, "small letters"),
        ({"a/b": {}}, "small letters"),
        ({"eu": {"kafka_topc": "a"}}, "'kafka_topc' is no setting of a source; did you mean 'kafka_topic'"),
        ({"eu": {"max_records_per_batch": 3}}, "of all sources together"),
        ({"eu": {"source_table": "/a"}}, "of all sources together"),
        ({"eu": {"kafka_topic": "a b"}}, "eu.kafka_topic"),
        ({"eu": {"schema_registry_url": "ftp://x"}}, "must start with http"),
        (
            {"a": {"source": "files", "files_path": "/a"}, "b": {"source": "files", "files_path": "/b"}},
            "a and b are both files",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(sources, said):
    with pytest.raises(ConfigurationError, match=said):
        load_settings(sources=sources)


def test_another_pipelines_bronze_is_no_source_among_others():
    with pytest.raises(ConfigurationError, match="SOURCES and SOURCE_TABLE exclude each other"):
        load_settings(sources={"eu": {}}, source_table="/a")


def test_secrets_of_a_source_are_in_no_text(monkeypatch):
    secrets = {
        "kafka_options": {"sasl.username": "reader", "sasl.password": "pass-of-eu"},
        "schema_registry_password": "registry-of-eu",
    }
    settings = load_settings(sources={"eu": secrets | {"schema_registry_user": "reader"}})
    assert "pass-of-eu" not in repr(settings) + str(settings)
    assert mask("pass-of-eu, registry-of-eu, cmVhZGVyOnBhc3Mtb2YtZXU=", settings) == "***, ***, ***"
    shown = json.dumps(_masked_settings(settings))
    assert "of-eu" not in shown
    assert json.loads(shown)["sources"]["eu"]["schema_registry_user"] == "reader"
    monkeypatch.setenv("GAME_EVENTS_SOURCES", '{"eu": {"schema_registry_url": "http://user:a-password@host"}}')
    with pytest.raises(ConfigurationError) as error:
        load_settings()
    assert "a-password" not in str(error.value)


def test_ids_of_the_top_levels_registry_are_plain_whatever_the_order_and_others_have_their_first_sources_name():
    a, b = {"schema_registry_url": "http://a"}, {"schema_registry_url": "http://b"}
    top = {"schema_registry_url": "http://a"}
    assert registry_names(load_settings(**top, sources={"one": a, "two": b, "three": b, "four": {}})) == {
        "one": "",
        "two": "two",
        "three": "two",
        "four": "",
    }
    assert registry_names(load_settings(**top, sources={"two": b, "one": a})) == {"two": "two", "one": ""}


@pytest.mark.parametrize("how", [{"type_field": "event"}, {"cloudevents": True}])
def test_records_that_name_their_type_do_not_choose_how_many_tables_there_are(how):
    decoding = {"bare": {"format": "json", **how}}
    for given in ({"decoding": decoding}, {"sources": {"eu": {"decoding": decoding}}}):
        with pytest.raises(ConfigurationError, match="SILVER_PER=entity_and_type needs GAME_EVENTS_SILVER_TYPES"):
            load_settings(silver_per="entity_and_type", **given)
        assert load_settings(silver_per="entity_and_type", silver_types="move", **given)
        assert load_settings(**given)


def test_a_source_with_a_login_of_its_own_is_not_sent_the_top_levels():
    """Else one cluster's password would go to another one's brokers."""
    secret = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"}
    settings = each(kafka_options=secret, msk_region="eu-west-1", sources={"us": {"kafka_login": "msk_iam"}, "eu": {}})
    assert (settings["us"].kafka_options, settings["us"].kafka_login) == ({}, "msk_iam")
    assert settings["eu"].kafka_options.keys() == secret.keys()
    settings = each(
        kafka_login="msk_iam", msk_region="eu-west-1", sources={"us": {"kafka_options": secret}, "eu": {"kafka_options": {}}}
    )
    assert [settings[name].kafka_login for name in ("us", "eu")] == ["options", "options"]


def test_where_topics_start_is_not_where_files_start():
    sources = {"old": {"source": "files", "files_path": "in"}, "late": {"source": "files", "files_path": "in"}}
    for given in ({"starting_offsets": "latest"}, {"starting_timestamp": "2026-01-01T00:00:00Z"}):
        old = each(sources={"old": sources["old"], "eu": {}}, **given)["old"]
        assert (old.starting_offsets, old.starting_timestamp) == ("earliest", None)
    own = each(sources={"old": sources["old"] | {"starting_timestamp": "2026-01-01T00:00:00Z"}})["old"]
    assert own.starting_timestamp is not None
