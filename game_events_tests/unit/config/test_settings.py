"""Settings: where they come from, which source wins, and that no secret is shown."""

import json
import os
import pickle

import pytest
from pydantic import ValidationError

from game_events.config import settings
from game_events.config.settings import STACK_STATE_FILE, Settings, load_settings
from game_events.errors import ConfigurationError

SECRET = "hunter2"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty working folder and no setting in the environment."""
    monkeypatch.chdir(tmp_path)
    for key in [k for k in os.environ if k.startswith("GAME_EVENTS_")]:
        monkeypatch.delenv(key)
    return tmp_path


def test_everything_has_a_default():
    settings = load_settings()
    assert (settings.kafka_topic, settings.games, settings.keep_raw) == ("game_events", (), "all")
    assert settings.kafka_bootstrap_servers == "localhost:9092"


def test_message_types_are_comma_separated_or_a_list(folder, monkeypatch):
    assert load_settings().message_types == ()
    (folder / "game_events.yaml").write_text("message_types: [shop.OrderPlaced, a title with spaces]\n")
    assert load_settings().message_types == ("shop.OrderPlaced", "a title with spaces")
    monkeypatch.setenv("GAME_EVENTS_MESSAGE_TYPES", " shop.OrderPlaced, shop.OrderPaid ,")
    assert load_settings().message_types == ("shop.OrderPlaced", "shop.OrderPaid")


def sources(folder, monkeypatch, *names):
    """The same setting from several sources at once, each with the source's own name."""
    if "stack" in names:
        file = folder / ".game_events" / STACK_STATE_FILE
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"kafka_bootstrap_servers": "stack:1", "schema_registry_url": "http://stack"}))
    if "yaml" in names:
        (folder / "game_events.yaml").write_text("kafka_bootstrap_servers: yaml:1\n")
    if "dotenv" in names:
        (folder / ".env").write_text("GAME_EVENTS_KAFKA_BOOTSTRAP_SERVERS=dotenv:1\nOTHER=x\n")
    if "environment" in names:
        monkeypatch.setenv("GAME_EVENTS_KAFKA_BOOTSTRAP_SERVERS", "environment:1")
    return load_settings(**({"kafka_bootstrap_servers": "argument:1"} if "argument" in names else {}))


ORDER = ("argument", "environment", "dotenv", "yaml", "stack")


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_first_source_that_names_a_setting_wins(first, folder, monkeypatch):
    assert sources(folder, monkeypatch, *ORDER[first:]).kafka_bootstrap_servers == f"{ORDER[first]}:1"


def test_mappings_of_several_sources_are_put_together_unless_one_says_that_there_is_nothing(folder, monkeypatch):
    (folder / "game_events.yaml").write_text("kafka_options: {a: '1'}\nspark_conf: {a: '1'}\nkafka_assign: {mine: [0]}\n")
    (folder / ".env").write_text('GAME_EVENTS_SPARK_CONF={"b": "2"}\nGAME_EVENTS_KAFKA_OPTIONS={"b": "2"}\n')
    monkeypatch.setenv("GAME_EVENTS_KAFKA_OPTIONS", "{}")
    settings = load_settings()
    assert (settings.spark_conf, settings.kafka_options) == ({"a": "1", "b": "2"}, {})
    assert settings.kafka_topics == ("mine",)
    assert load_settings(kafka_topic="other", kafka_assign={}).kafka_topics == ("other",), "what `produce --topic` asks for"


def test_sources_complete_each_other(folder, monkeypatch):
    (folder / "game_events.yaml").write_text("kafka_topic: from_yaml\ngames: [a, b]\n")
    (folder / ".env").write_text("GAME_EVENTS_MAX_GAMES=7\n")
    settings = sources(folder, monkeypatch, "stack", "environment")
    assert (settings.kafka_topic, settings.games, settings.max_games) == ("from_yaml", ("a", "b"), 7)
    assert (settings.kafka_bootstrap_servers, settings.schema_registry_url) == ("environment:1", "http://stack")


def test_settings_of_a_group_are_one_mapping_of_the_yaml_file(folder):
    (folder / "game_events.yaml").write_text(
        "kafka: {topic: mine, schema_registry_url: 'http://r', on_data_loss: record_gap}\n"
        "spark: {conf: {a: '1'}, master: 'local[3]'}\n"
        "tables: {games: [a, b]}\n"
        "max_games: 7\n"
    )
    settings = load_settings()
    assert (settings.kafka_topics, settings.schema_registry_url, settings.on_data_loss) == (("mine",), "http://r", "record_gap")
    assert (settings.spark_conf, settings.spark_master, settings.games) == ({"a": "1"}, "local[3]", ("a", "b"))
    assert settings.max_games == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kafka_topik: mine", r"game_events\.yaml: 'kafka_topik' is no setting; did you mean 'kafka_topic'\?"),
        ("kafka: {topik: mine}", r"'topik' is no setting"),
        ("1: mine", r"game_events\.yaml: 1 is no setting"),
        ("kafka: {1: mine}", r"1 is no setting of 'kafka'"),
        ("kafka: mine", r"'kafka' is no mapping"),
        ("spark: {kafka_topic: mine}", r"'kafka_topic' is no setting of 'spark'"),
    ],
)
def test_a_name_of_the_yaml_file_that_is_no_setting_is_an_error(folder, text, message):
    (folder / "game_events.yaml").write_text(text + "\n")
    with pytest.raises(ConfigurationError, match=message):
        load_settings()


@pytest.mark.parametrize(
    ("variable", "says"),
    [
        ("GAME_EVENTS_KAFKA_TOPC", "TOPC is no setting, and has no effect; did you mean GAME_EVENTS_KAFKA_TOPIC?"),
        ("game_events_kafka_topc", "did you mean GAME_EVENTS_KAFKA_TOPIC?"),
        ("GAME_EVENTS_CONFG", "did you mean GAME_EVENTS_CONFIG?"),
        ("GAME_EVENTS_XYZ", "docs/reference/settings.md lists all of them"),
    ],
)
@pytest.mark.parametrize("source", ["environment", ".env"])
def test_a_misspelt_variable_is_warned_about_once_with_the_nearest_name(source, variable, says, folder, monkeypatch, caplog):
    settings._warn_once.cache_clear()
    if source == "environment":
        monkeypatch.setenv(variable, SECRET)
    else:
        (folder / ".env").write_text(f"{variable}={SECRET}\nOTHER_TEAM=1\n")
    load_settings()
    load_settings()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert says in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("source", ["environment", ".env", "yaml", "argument"])
def test_a_name_of_an_earlier_release_is_refused_with_the_one_of_now(source, folder, monkeypatch):
    """It means something else now: a warning would go unnoticed."""
    given = {}
    match source:
        case "environment":
            monkeypatch.setenv("GAME_EVENTS_RETENTION_H", "48")
        case ".env":
            (folder / ".env").write_text("GAME_EVENTS_DERIVED_RETENTION_H=48\n")
        case "yaml":
            (folder / "game_events.yaml").write_text("tables:\n  retention_h: 48\n")
        case "argument":
            given = {"retention_h": 48}
    with pytest.raises(ConfigurationError, match=r"(?i)replaced_files_h"):
        load_settings(**given)


def test_variables_that_are_read_are_not_warned_about(folder, monkeypatch, caplog):
    (folder / "mine.yaml").write_text("kafka_topic: mine\n")
    variables = {"CONFIG": "mine.yaml", "SECRETS_DIR": str(folder), "CACHE": "x", "GAMES": "uno", "TEST_CODE": "1"}
    for name, value in variables.items():
        monkeypatch.setenv(f"GAME_EVENTS_{name}", value)
    load_settings()
    assert caplog.text == ""


def test_an_argument_that_is_no_setting_is_an_error():
    with pytest.raises(ConfigurationError, match="'kafka_topc' is no setting, and has no effect; did you mean kafka_topic"):
        load_settings(kafka_topc="mine")


def test_another_yaml_file_may_be_named(folder, monkeypatch):
    (folder / "game_events.yaml").write_text("kafka_topic: usual\n")
    (folder / "mine.yaml").write_text("kafka_topic: mine\n")
    monkeypatch.setenv("GAME_EVENTS_CONFIG", str(folder / "mine.yaml"))
    assert load_settings().kafka_topic == "mine"


def test_a_yaml_file_that_is_named_and_missing_is_an_error(monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_CONFIG", "nowhere.yaml")
    with pytest.raises(ConfigurationError, match=r"nowhere\.yaml"):
        load_settings()


def test_the_stack_of_another_state_folder_is_found(folder, monkeypatch):
    file = folder / "other" / STACK_STATE_FILE
    file.parent.mkdir(parents=True)
    file.write_text('{"kafka_bootstrap_servers": "other:1"}')
    monkeypatch.setenv("GAME_EVENTS_STATE_DIR", "other")
    assert load_settings().kafka_bootstrap_servers == "other:1"
    assert load_settings().schema_registry_url == "http://localhost:8081"


@pytest.mark.parametrize("text", ["", "{", '{"kafka_bootstrap_servers": null}'])
def test_a_damaged_stack_file_is_no_stack(text, folder):
    file = folder / ".game_events" / STACK_STATE_FILE
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert load_settings().kafka_bootstrap_servers == "localhost:9092"


@pytest.mark.parametrize(("text", "games"), [("a,b", ("a", "b")), (" a , b ,", ("a", "b")), ("", ()), ("a", ("a",))])
def test_the_allow_list_is_comma_separated(text, games, monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_GAMES", text)
    assert load_settings().games == games


def test_options_of_clients_are_json(monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_KAFKA_OPTIONS", '{"sasl.password": "hunter2", "security.protocol": "SSL"}')
    options = load_settings().kafka_options
    assert options["sasl.password"].get_secret_value() == SECRET
    assert list(options) == ["sasl.password", "security.protocol"]


def test_an_empty_variable_is_none_where_none_is_allowed(monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_SPARK_REMOTE", "")
    monkeypatch.setenv("GAME_EVENTS_SCHEMA_REGISTRY_USER", "")
    assert (load_settings().spark_remote, load_settings().schema_registry_user) == (None, None)


@pytest.mark.parametrize("url", ["http://r:1/", "http://r:1", "https://r:1//"])
def test_the_registrys_address_has_no_slash_at_its_end(url):
    assert not load_settings(schema_registry_url=url).schema_registry_url.endswith("/")


# --- bad values


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("MAX_RECORDS_PER_BATCH", "0", "greater than or equal to 1"),
        ("MAX_RECORDS_PER_BATCH", "many", "integer"),
        ("STARTING_OFFSETS", "middle", "earliest, latest, or JSON"),
        ("STARTING_TIMESTAMP", "2026-11-21T00:00:00", "timezone"),
        ("KEEP_RAW", "some", "'all' or 'failures'"),
        ("SCHEMA_REGISTRY_URL", "registry:8081", "must start with http"),
        ("SCHEMA_REGISTRY_URL", "http://one:8081,two:8081", "must start with http"),
        ("SCHEMA_REGISTRY_URL", "http://one:8081,", "must start with http"),
        ("KAFKA_TOPIC", "", "at least 1 character"),
        ("SPARK_DRIVER_MEMORY", "lots", "pattern"),
        ("LAKEHOUSE", "", "at least 1 character"),
    ],
)
def test_a_bad_value_names_its_key_and_what_is_allowed(key, value, says, monkeypatch):
    monkeypatch.setenv(f"GAME_EVENTS_{key}", value)
    with pytest.raises(ConfigurationError, match=f"GAME_EVENTS_{key}: .*{says}"):
        load_settings()


def test_every_bad_value_is_named_at_once(monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_KEEP_RAW", "x")
    monkeypatch.setenv("GAME_EVENTS_MAX_GAMES", "x")
    with pytest.raises(ConfigurationError, match=r"(?s)KEEP_RAW.*MAX_GAMES|MAX_GAMES.*KEEP_RAW"):
        load_settings()


@pytest.mark.parametrize(
    "overrides",
    [
        {"kafka_options": {"sasl.password": [SECRET]}},
        {"kafka_options": SECRET},
        {"schema_registry_password": {"a": SECRET}},
    ],
)
def test_a_bad_secret_is_not_repeated(overrides):
    with pytest.raises(ConfigurationError) as caught:
        load_settings(**overrides)
    assert SECRET not in str(caught.value)
    assert "GAME_EVENTS_KAFKA_OPTIONS" in str(caught.value) or "GAME_EVENTS_SCHEMA_REGISTRY_PASSWORD" in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("url", ["http://me:planted@host:8081", "https://good:8081,https://me:planted@host"])
def test_a_password_in_the_registrys_address_is_refused_and_not_repeated(url):
    with pytest.raises(ConfigurationError, match="GAME_EVENTS_SCHEMA_REGISTRY_PASSWORD") as raised:
        load_settings(schema_registry_url=url)
    assert "planted" not in str(raised.value)


@pytest.mark.parametrize("source", ["environment", "dotenv"])
def test_options_that_are_no_json_are_an_error_of_ours_without_the_value(source, folder, monkeypatch):
    text = '{"sasl.password": "hunter2"'
    if source == "environment":
        monkeypatch.setenv("GAME_EVENTS_KAFKA_OPTIONS", text)
    else:
        (folder / ".env").write_text(f"GAME_EVENTS_KAFKA_OPTIONS='{text}'\n")
    with pytest.raises(ConfigurationError, match="GAME_EVENTS_KAFKA_OPTIONS") as caught:
        load_settings()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["kafka_topic: [", "just words\n", "- a\n- b\n", "5\n", f"- kafka_topic: {SECRET}\n", f"- [kafka_topic, {SECRET}]\n"],
)
def test_a_yaml_file_that_cannot_be_read_is_an_error_that_names_it_and_repeats_nothing_of_it(text, folder):
    (folder / "game_events.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=r"game_events\.yaml.* must be YAML with one `name: value` a line") as caught:
        load_settings()
    assert SECRET not in str(caught.value)


def test_a_file_of_settings_that_is_not_utf_8_is_no_fault_of_the_yaml_file(folder):
    (folder / ".env").write_bytes(b"GAME_EVENTS_LAKEHOUSE=\xff")
    with pytest.raises(ConfigurationError, match=r"^a settings file \(\.env, .*\) is not UTF-8$"):
        load_settings()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"kafka_options": {"sasl.password": 5}}, "GAME_EVENTS_KAFKA_OPTIONS: sasl.password: Input should be a valid string"),
        ({"rules": [{"name": "x"}]}, "GAME_EVENTS_RULES: 0.sql: Field required"),
    ],
)
def test_a_bad_part_of_a_setting_is_named_as_it_was_written(settings, named):
    with pytest.raises(ConfigurationError) as caught:
        load_settings(**settings)
    assert named in str(caught.value)


# --- secrets


def test_secrets_print_as_stars():
    settings = load_settings(
        kafka_options={"sasl.password": SECRET}, schema_registry_user="ann", schema_registry_password=SECRET
    )
    shown = [repr(settings), str(settings), settings.model_dump_json(), str(settings.model_dump()), f"{settings!r:>5}"]
    assert all(SECRET not in text for text in shown)
    assert all("***" in text for text in shown)


def test_settings_do_not_change():
    with pytest.raises(ValidationError):
        load_settings().kafka_topic = "other"


def test_settings_survive_another_process():
    settings = load_settings(kafka_options={"sasl.password": SECRET}, games=("a",))
    assert pickle.loads(pickle.dumps(settings)) == settings  # noqa: S301 - our own bytes
    assert isinstance(settings, Settings)


@pytest.mark.parametrize("column", ["a/b", "x=y"])
def test_a_column_of_games_that_can_be_no_folder_of_the_unified_table_is_refused(column):
    with pytest.raises(ConfigurationError, match="neither / nor ="):
        load_settings(entity_column=column)
    assert load_settings(entity_column="größe a%20b").entity_column == "größe a%20b"


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("on_bad_value: null", "null"),
        ("on_bad_value: 'null'", "null"),
        ("on_bad_value: quarantine", "quarantine"),
        ("on_bad_value: {a: null, b: 'null', '*': quarantine}", {"a": "null", "b": "null", "*": "quarantine"}),
    ],
)
def test_yamls_null_is_the_choice_of_that_name(text, choice, folder):
    (folder / "game_events.yaml").write_text(text + "\n")
    assert load_settings().on_bad_value == choice


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ON_BAD_VALUE", "nothing"),
        ("ON_BAD_VALUE", '{"a": "x"}'),
        ("ON_BAD_VALUE", "{"),
        ("NAIVE_TIMES_ZONE", "Europe/Nowhere"),
        ("NAIVE_TIMES_ZONE", "../../etc/passwd"),
        ("NAIVE_TIMES_ZONE", "+02:00"),
        ("DECIMAL_MESSAGES", "money"),
    ],
)
def test_other_choices_for_single_values_are_refused_by_the_settings_name(name, value, monkeypatch):
    monkeypatch.setenv(f"GAME_EVENTS_{name}", value)
    with pytest.raises(ConfigurationError, match=name):
        load_settings()
