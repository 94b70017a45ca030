"""Registration and grants in Unity Catalog; with `GAME_EVENTS_TEST_UNITY` in a real server."""

import itertools
from contextlib import closing

import httpx2
import polars as pl
import pyarrow as pa
import pytest

from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.lakehouse import failpoints
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import TableReport
from game_events.pipeline.runs.preflight import Hint
from game_events.plugins.catalog.catalogs import unity as unity_module
from game_events.plugins.catalog.catalogs.checks import doctor, grants_hold
from game_events.plugins.catalog.catalogs.registration import register_tables, tables_registered
from game_events.plugins.catalog.catalogs.unity import UnityCatalog, UnityServer, columns
from game_events_tests.support.servers.json_server import json_server
from game_events_tests.support.servers.secured_broker import make_certificates
from game_events_tests.support.servers.unity_server import unity_server
from game_events_tests.support.tables import put
from game_events_tests.unit.plugins.catalog.test_registration import make

ANN, BOB = "ann@example.com", 'b`o"b@example.com'
TABLES = ("bronze_events", "gold_a_player_agg", "gold_b_player_agg", "silver_a_events")


@pytest.fixture
def unity():
    with unity_server() as server:
        server.add_user(ANN)
        server.add_user(BOB)
        yield server


@pytest.fixture(autouse=True)
def environment(unity, tmp_path, monkeypatch):
    """Settings of commands, too."""
    values = {
        "LAKEHOUSE": f"{tmp_path}/my lake",
        "CATALOG": f"{unity.catalog}.games",
        "UNITY_URL": unity.url,
        "UNITY_TOKEN": unity.token,
    }
    for name, value in values.items():
        monkeypatch.setenv(f"GAME_EVENTS_{name}", value)
    monkeypatch.chdir(tmp_path)
    return monkeypatch


def no_spark():
    raise AssertionError("no Spark is needed")


def registered(**settings):
    """What a run registers, and what it warns of."""
    report = RunReport(tables=[TableReport("bronze", "bronze_events", "")])
    register_tables(Pipeline(load_settings(**settings), no_spark), report)
    return report.registered, report.notices


def check(**settings):
    return tables_registered(Pipeline(load_settings(**settings), no_spark))


def grants_of(*entries):
    return {"grants": list(entries)}


def test_tables_are_registered_once_without_spark_and_read_by_another_client(environment, unity, tmp_path):
    root = tmp_path / "lake's"
    environment.setenv("GAME_EVENTS_LAKEHOUSE", str(root))
    make(root, *TABLES)
    assert check().summary == f"not in the catalog: {', '.join(TABLES)}"
    assert registered() == (list(TABLES), [])
    assert registered() == ([], [])
    make(root, "silver_b_events")
    assert registered() == (["silver_b_events"], [])
    assert check().summary == "all 5 tables are registered"
    client = pl.Catalog(unity.url, bearer_token=unity.token, require_https=False)
    assert sorted(table.name for table in client.list_tables(unity.catalog, "games")) == sorted((*TABLES, "silver_b_events"))
    found = client.get_table_info(unity.catalog, "games", "bronze_events")
    assert found.storage_location == f"file://{root}/bronze_events"
    batch = "Number of the commit of bronze_events that brought the row"
    assert [(c.name, c.type_name, c.type_text, c.comment) for c in found.columns] == [
        ("game_name", "STRING", "string", None),
        ("_batch", "LONG", "bigint", batch),
    ]
    assert client.scan_table(unity.catalog, "games", "bronze_events").collect().rows() == [("a", 1), ("b", 1)]


def test_another_lakehouses_tables_are_refused(tmp_path):
    make(tmp_path / "my lake", "bronze_events")
    registered()
    other = tmp_path / "other"
    make(other, "bronze_events", "silver_a_events")
    names, (notice,) = registered(lakehouse=str(other))
    assert names == []
    assert f"is {tmp_path}/my lake/bronze_events, not {other}/bronze_events: set GAME_EVENTS_CATALOG" in notice
    assert not check(lakehouse=str(other)).passed


def test_a_table_of_another_lakehouse_is_named_and_stays_and_the_others_are_registered(tmp_path):
    make(tmp_path / "my lake", "silver_a_events")
    registered()
    other = str(tmp_path / "other")
    make(other, "bronze_events", "silver_a_events", "silver_b_events")
    names, (notice,) = registered(lakehouse=other)
    assert names == ["bronze_events", "silver_b_events"]
    assert f"1 tables could not be registered in the catalog {load_settings().catalog}: silver_a_events" in notice
    assert "set GAME_EVENTS_CATALOG" in notice
    found = check(lakehouse=other)
    assert (found.passed, found.counts["missing"]) == (False, 1)
    assert "set GAME_EVENTS_CATALOG" in found.summary


@pytest.mark.parametrize("status", [400, 403, 500])
def test_a_table_that_the_server_refuses_is_named_and_the_others_are_registered(environment, unity, tmp_path, status):
    make(tmp_path / "my lake", *TABLES)
    registered_once = UnityCatalog.register

    def refuse_one(catalog, table):
        if table.name == "gold_a_player_agg":
            unity.refuse["POST", "tables"] = status, {"message": "no such type"}
        try:
            registered_once(catalog, table)
        finally:
            unity.refuse.clear()

    environment.setattr(UnityCatalog, "register", refuse_one)
    names, (notice,) = registered()
    assert names == [name for name in TABLES if name != "gold_a_player_agg"]
    assert "1 tables could not be registered" in notice
    assert "gold_a_player_agg (" in notice
    assert "no such type" in notice
    environment.undo()


def test_a_table_that_cannot_be_opened_is_named_and_the_others_are_registered(tmp_path):
    root = tmp_path / "my lake"
    make(root, "bronze_events", "silver_a_events", "silver_b_events")
    (root / "silver_a_events" / "_delta_log" / f"{0:020}.json").write_text("{")
    names, (notice,) = registered()
    assert names == ["bronze_events", "silver_b_events"]
    assert "silver_a_events (" in notice


def test_a_table_whose_grants_cannot_be_asked_or_given_keeps_no_other_from_its_grants(environment, unity, cli, tmp_path):
    make(tmp_path / "my lake", "gold_a_player_agg", "gold_b_player_agg", "gold_c_player_agg")
    schema = f"{unity.catalog}.games"
    asked, given = (f"permissions/table/{schema}.gold_{game}_player_agg" for game in "ab")
    unity.refuse["GET", asked] = 500, {"message": "broken"}
    unity.refuse["PATCH", given] = 503, {"message": "busy"}
    names, (notice,) = registered(**grants_of({"layers": ["gold"], "to": [ANN]}))
    assert len(names) == 3
    assert "game-events grants apply" in notice
    assert "broken" in notice
    assert "busy" in notice
    assert unity.privileges("table", f"{schema}.gold_c_player_agg") == {ANN: {"SELECT"}}
    environment.setenv("GAME_EVENTS_GRANTS", '[{"layers": ["gold"], "to": ["ann@example.com"]}]')
    assert list(cli("grants", "plan", "--json").result["unknown"]) == ["gold_a_player_agg"]
    assert cli("grants", "check").code == 1
    assert not grants_hold(Pipeline(load_settings(), no_spark)).passed
    assert isinstance(doctor(load_settings())["catalog"](), Hint)
    assert len(cli("grants", "apply", "--json").result["failures"]) == 2
    unity.refuse.clear()
    assert cli("grants", "apply").code == 0
    assert cli("grants", "check").code == 0


def test_a_server_that_is_away_is_a_notice_and_the_next_run_catches_up(tmp_path):
    make(tmp_path / "my lake", "bronze_events")
    away = "http://127.0.0.1:1"
    names, (notice,) = registered(unity_url=away)
    assert names == []
    assert "AwayError: Unity Catalog at http://127.0.0.1:1/api/2.1/unity-catalog does not answer" in notice
    assert check(unity_url=away).summary.startswith("the catalog could not be asked")
    hint = doctor(load_settings(unity_url=away))["catalog"]()
    assert isinstance(hint, Hint)
    assert "does not answer: ConnectError; runs warn until it does" in hint
    assert registered() == (["bronze_events"], [])


def test_a_wrong_token_and_a_wrong_catalog_are_named_and_the_token_is_not(tmp_path):
    make(tmp_path / "my lake", "bronze_events")
    _, (notice,) = registered(unity_token="pl4nted-wrong-token")  # noqa: S106 - planted
    assert "401" in notice
    assert "pl4nted" not in notice
    _, (notice,) = registered(catalog="nowhere.games")
    assert "Catalog not found: nowhere" in notice
    with pytest.raises(ConfigurationError, match="Catalog not found: nowhere"):
        doctor(load_settings(catalog="nowhere.games"))["catalog"]()


@pytest.mark.parametrize("status", [400, 403, 500])
def test_a_server_that_repeats_the_token_gives_it_to_no_report_check_hint_or_command(environment, unity, cli, tmp_path, status):
    make(tmp_path / "my lake", "gold_a_player_agg", "gold_b_player_agg")
    registered()
    make(tmp_path / "my lake", "silver_a_events")
    environment.setenv("GAME_EVENTS_GRANTS", '[{"layers": ["gold"], "to": ["ann@example.com"]}]')
    told = status, {"message": f"{'x' * 280} Authorization: Bearer {unity.token}"}
    schema = f"{unity.catalog}.games"
    unity.refuse["POST", "tables"] = told
    unity.refuse["GET", f"permissions/table/{schema}.gold_a_player_agg"] = told
    unity.refuse["PATCH", f"permissions/table/{schema}.gold_b_player_agg"] = told
    texts = [*registered()[1], doctor(load_settings())["catalog"](), grants_hold(Pipeline(load_settings(), no_spark)).summary]
    for command in (["grants", "plan"], ["grants", "apply"], ["grants", "check", "--json"]):
        said = cli(*command)
        texts += [said.out, said.err]
    assert "Authorization" in "".join(texts)
    assert unity.token[:6] not in "".join(texts)


def test_a_run_that_dies_between_two_tables_leaves_the_others_to_the_next(tmp_path, monkeypatch):
    make(tmp_path / "my lake", *TABLES)

    class KilledError(BaseException):
        pass

    def die(name, detail):
        if (name, detail) == ("table_registered", "gold_a_player_agg"):
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "handler", die)
        with pytest.raises(KilledError):
            registered()
    assert registered() == (["gold_b_player_agg", "silver_a_events"], [])


def test_grants_are_planned_made_and_checked(environment, unity, cli, tmp_path):
    make(tmp_path / "my lake", *TABLES)
    registered()
    environment.setenv(
        "GAME_EVENTS_GRANTS",
        '[{"layers": ["gold"], "games": ["a*"], "to": ["ann@example.com"]},'
        ' {"layers": ["silver"], "to": ["b`o\\"b@example.com"], "privileges": ["SELECT", "MODIFY"]}]',
    )
    schema = f"{unity.catalog}.games"
    unity.grant("table", f"{schema}.gold_b_player_agg", ANN, "SELECT")
    unity.grant("schema", schema, BOB, "SELECT")
    planned = cli("grants", "plan", "--json").result
    name = f"`{unity.catalog}`.`games`"
    bob = '`b``o"b@example.com`'
    missing = [
        *(f"GRANT USE CATALOG ON CATALOG `{unity.catalog}` TO {user}" for user in (f"`{ANN}`", bob)),
        *(f"GRANT USE SCHEMA ON SCHEMA {name} TO {user}" for user in (f"`{ANN}`", bob)),
        f"GRANT SELECT ON TABLE {name}.`gold_a_player_agg` TO `{ANN}`",
        f"GRANT MODIFY ON TABLE {name}.`silver_a_events` TO {bob}",
        f"GRANT SELECT ON TABLE {name}.`silver_a_events` TO {bob}",
    ]
    surplus = [
        f"REVOKE SELECT ON SCHEMA {name} FROM {bob}",
        f"REVOKE SELECT ON TABLE {name}.`gold_b_player_agg` FROM `{ANN}`",
    ]
    assert planned == {"missing": missing, "surplus": surplus, "unregistered": [], "unknown": {}}
    assert cli("grants", "check").code == 1
    hint = doctor(load_settings())["catalog"]()
    assert isinstance(hint, Hint)
    assert "7 missing, 2 surplus" in hint
    # What is surplus is taken away by those only who ask for it.
    applied = cli("grants", "apply")
    assert (applied.code, "what is surplus was left as it is" in applied.out) == (0, True)
    assert unity.privileges("table", f"{schema}.silver_a_events") == {BOB: {"SELECT", "MODIFY"}}
    assert unity.privileges("table", f"{schema}.gold_b_player_agg") == {ANN: {"SELECT"}}
    checked = cli("grants", "check", "--json")
    assert (checked.code, checked.result["missing"], checked.result["surplus"]) == (1, [], surplus)
    assert not grants_hold(Pipeline(load_settings(), no_spark)).passed
    assert cli("grants", "apply", "--revoke").code == 0
    assert unity.privileges("table", f"{schema}.gold_b_player_agg") == {}
    assert unity.privileges("schema", schema) == {ANN: {"USE SCHEMA"}, BOB: {"USE SCHEMA"}}
    assert cli("grants", "check").code == 0
    assert grants_hold(Pipeline(load_settings(), no_spark)).summary == "0 missing, 0 surplus"


def test_a_new_games_table_has_its_grants_when_it_is_registered(unity, tmp_path):
    make(tmp_path / "my lake", "gold_a_player_agg")
    grant = grants_of({"layers": ["gold"], "games": ["?"], "to": [ANN]})
    assert registered(**grant) == (["gold_a_player_agg"], [])
    make(tmp_path / "my lake", "gold_b_player_agg", "gold_bb_player_agg")
    assert registered(**grant) == (["gold_b_player_agg", "gold_bb_player_agg"], [])
    given = {
        table: unity.privileges("table", f"{unity.catalog}.games.{table}")
        for table in ("gold_b_player_agg", "gold_bb_player_agg")
    }
    assert given == {"gold_b_player_agg": {ANN: {"SELECT"}}, "gold_bb_player_agg": {}}


def test_a_principal_that_the_catalog_does_not_know_harms_nobody_else(environment, unity, cli, tmp_path):
    make(tmp_path / "my lake", "gold_a_player_agg", "gold_b_player_agg")
    registered()
    environment.setenv("GAME_EVENTS_GRANTS", '[{"layers": ["gold"], "to": ["nobody@example.com", "ann@example.com"]}]')
    applied = cli("grants", "apply", "--json")
    assert applied.code == 1
    assert {"User not found: nobody@example.com" in failure for failure in applied.result["failures"]} == {True}
    assert unity.privileges("table", f"{unity.catalog}.games.gold_b_player_agg") == {ANN: {"SELECT"}}


def test_tables_that_are_not_registered_are_said_and_planned_later(environment, cli, tmp_path):
    environment.setenv("GAME_EVENTS_GRANTS", '[{"layers": ["gold"], "to": ["ann@example.com"]}]')
    make(tmp_path / "my lake", "gold_a_player_agg")
    # The schema is made by the first run.
    assert cli("grants", "plan", "--json").result["unregistered"] == ["gold_a_player_agg"]
    assert "the server answers" in doctor(load_settings())["catalog"]()
    make(tmp_path / "my lake", "bronze_events")
    registered()
    assert cli("grants", "check").code == 0
    make(tmp_path / "my lake", "gold_b_player_agg")
    assert cli("grants", "plan", "--json").result["unregistered"] == ["gold_b_player_agg"]


def test_nothing_is_asked_without_new_tables(unity, tmp_path):
    make(tmp_path / "my lake", "bronze_events")
    pipeline = Pipeline(load_settings(), no_spark)
    report = RunReport(tables=[TableReport("bronze", "bronze_events", "")])
    register_tables(pipeline, report)
    before = len(unity.asked)
    register_tables(pipeline, report)
    register_tables(pipeline, RunReport())
    assert len(unity.asked) == before


def test_columns_of_every_kind_have_the_names_that_unity_knows(tmp_path):
    schema = pa.schema([
        ("i", pa.int32()), ("n", pa.int64()), ("d", pa.decimal128(20, 0)), ("t", pa.timestamp("us", "UTC")), ("b", pa.binary()),
        ("l", pa.list_(pa.struct([("x", pa.float64()), ("y", pa.int16())]))), ("m", pa.map_(pa.string(), pa.bool_())),
    ])  # fmt: skip
    handle = put(Lakehouse(str(tmp_path)).table("bronze_events"), schema.empty_table())
    assert [(c["name"], c["type_name"], c["type_text"]) for c in columns(handle)] == [
        ("i", "INT", "int"),
        ("n", "LONG", "bigint"),
        ("d", "DECIMAL", "decimal(20,0)"),
        ("t", "TIMESTAMP", "timestamp"),
        ("b", "BINARY", "binary"),
        ("l", "ARRAY", "array<struct<x:double,y:smallint>>"),
        ("m", "MAP", "map<string,boolean>"),
    ]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"catalog": "games"}, "needs GAME_EVENTS_CATALOG=catalog.schema"),
        ({"catalog_views": "types"}, "is for Spark's catalogs"),
        ({"unity_url": "http://user:pw@host"}, "must hold no password"),
        ({"unity_url": "unity:8080"}, "must start with http"),
        ({"unity_url": None, **grants_of({"layers": ["gold"], "to": ["a"]})}, "UNITY_URL: Spark's SQL has no GRANT"),
        (grants_of({"layers": ["bronze"], "games": ["a"], "to": ["a"]}), "have rows of all games"),
        (grants_of({"layers": ["gold"], "to": []}), "at least 1 item"),
        (grants_of({"layers": ["gold"], "to": ["a\nb"]}), "should match pattern"),
        (grants_of({"layers": ["gold"], "to": ["a"], "privileges": ["OWN"]}), "SELECT"),
    ],
)  # fmt: skip
def test_what_no_catalog_can_do_is_refused_when_settings_are_read(settings, why):
    given = {"catalog": "main.games", "unity_url": "http://127.0.0.1:1", **settings}
    with pytest.raises(ConfigurationError, match=why):
        load_settings(**given)


def test_a_grant_for_some_games_is_refused_where_a_table_has_all(tmp_path):
    make(tmp_path / "my lake", "silver_events")
    grant = grants_of({"layers": ["silver"], "games": ["a"], "to": [ANN]})
    found = grants_hold(Pipeline(load_settings(silver_layout="partitioned", **grant), no_spark))
    assert "silver_events has the rows of all games, so ann@example.com cannot get those of a alone" in found.summary


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("tables", {"tables": [{"storage_location": "file:///x"}]}),
        ("tables", {"tables": {"name": "x"}}),
        ("tables", {"tables": [], "next_page_token": 7}),
        ("permissions/table/main.games.t", {"privilege_assignments": [{"privileges": ["SELECT"]}]}),
        ("permissions/table/main.games.t", {"privilege_assignments": [{"principal": "a", "privileges": "SELECT"}]}),
        ("permissions/table/main.games.t", "[]"),
    ],
)
def test_an_answer_of_another_shape_is_an_error_that_says_what_and_where(unity, path, answer):
    unity.refuse["GET", path] = 200, answer
    with (
        closing(UnityServer(unity.url, unity.token)) as server,
        pytest.raises(ConfigurationError, match=r"Unity Catalog") as said,
    ):
        if path == "tables":
            list(server.tables(unity.catalog, "games"))
        else:
            server.permissions("table", "main.games.t")
    assert path in str(said.value)


@pytest.mark.parametrize("tokens", [itertools.repeat("again"), itertools.cycle("ab"), itertools.count()])
def test_a_listing_that_never_ends_is_refused(environment, tokens):
    environment.setattr(unity_module, "MOST_PAGES", 20)

    def more(*_):
        return 200, {"tables": [], "next_page_token": f"t{next(tokens)}"}

    never = pytest.raises(ConfigurationError, match=r"does not end its list of the tables of main\.games")
    with json_server(more) as url, closing(UnityServer(url, None)) as server, never:
        list(server.tables("main", "games"))


def test_the_authority_of_the_settings_is_trusted_and_no_other(tmp_path):
    authority, stranger = make_certificates(tmp_path)
    make(tmp_path / "my lake", "bronze_events")
    with json_server(lambda *_: (200, {}), tmp_path / "broker.pem") as url:
        assert "the server answers" in doctor(load_settings(unity_url=url, tls_ca_file=authority))["catalog"]()
        hint = doctor(load_settings(unity_url=url, tls_ca_file=stranger))["catalog"]()
    assert "GAME_EVENTS_TLS_CA_FILE" in hint


def test_connections_end_with_what_asked(environment, cli, tmp_path):
    make(tmp_path / "my lake", "gold_a_player_agg")
    environment.setenv("GAME_EVENTS_GRANTS", '[{"layers": ["gold"], "to": ["ann@example.com"]}]')
    made, closed = [], []
    make_client, close = httpx2.Client.__init__, httpx2.Client.close
    environment.setattr(httpx2.Client, "__init__", lambda client, **given: made.append(client) or make_client(client, **given))
    environment.setattr(httpx2.Client, "close", lambda client: closed.append(client) or close(client))
    registered()
    check()
    grants_hold(Pipeline(load_settings(), no_spark))
    doctor(load_settings())["catalog"]()
    cli("grants", "plan")
    assert len(made) == 7
    assert set(map(id, closed)) == set(map(id, made))


def test_an_answer_that_is_not_unitys_is_said(unity):
    server = UnityServer(f"{unity.url}/elsewhere", unity.token)
    with pytest.raises(ConfigurationError, match="404"):
        server.ask("GET", "catalogs")
