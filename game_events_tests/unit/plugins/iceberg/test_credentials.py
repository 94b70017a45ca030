"""The secrets of pyiceberg's configuration reach no text, wherever they are configured and whatever a catalog repeats."""

from __future__ import annotations

import json
import sys

import pyarrow as pa
import pytest

from game_events.config.masking import mask
from game_events.config.settings import load_settings
from game_events.errors import GameEventsError
from game_events.pipeline.event_log import RunFacts, event_rows
from game_events.pipeline.runs.preflight import run_checks
from game_events.plugins.iceberg.lag import doctor, iceberg_is_current
from game_events_tests.support.iceberg import run_ended
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.servers.json_server import json_server
from game_events_tests.support.tables import put

#: Property of a catalog -> (value, the part of it that nobody may see).
SECRETS = {
    "token": ("pl4nted-token", "pl4nted-token"),
    "credential": ("client:pl4nted-client", "pl4nted-client"),
    "header.Authorization": ("Bearer pl4nted-bearer", "pl4nted-bearer"),
    "s3.secret-access-key": ("pl4nted/s3", "pl4nted/s3"),
    "s3.session-token": ("pl4nted-session", "pl4nted-session"),
    "adls.connection-string": ("a=b;AccountKey=pl4nted-adls", "pl4nted-adls"),
    "adls.sas-token": ("pl4nted-sas", "pl4nted-sas"),
    "gcs.oauth2.token": ("pl4nted-gcs", "pl4nted-gcs"),
    "auth.basic.password": ("pl4nted-basic", "pl4nted-basic"),
    "uri": ("postgresql://me:pl4nted%2Fdb@host/db", "pl4nted/db"),
}


@pytest.fixture(params=["environment", "file"])
def configure(request, monkeypatch, tmp_path):
    """Properties of the catalog `lake`, in each place where pyiceberg looks."""

    def in_environment(properties):
        for name, value in properties.items():
            variable = name.upper().replace(".", "__").replace("-", "_")
            monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{variable}", value)

    def in_file(properties):
        monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
        lines = [f"    {name}: {json.dumps(value)}" for name, value in properties.items()]
        (tmp_path / ".pyiceberg.yaml").write_text("\n".join(["catalog:", "  lake:", *lines]))

    return in_environment if request.param == "environment" else in_file


@pytest.mark.parametrize("name", SECRETS)
def test_every_credential_of_a_catalog_is_masked_whole_and_in_parts(configure, name):
    value, part = SECRETS[name]
    configure({"type": "rest", name: value})
    settings = load_settings(iceberg=True, iceberg_catalog="lake")
    for text in (value, part):
        assert part not in mask(f"the server says: {text}!", settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [("type", "rest"), ("warehouse", "s3://lake/x"), ("token-refresh-enabled", "true")],
)
def test_what_is_no_secret_is_said(configure, name, value):
    configure({name: value})
    assert value in mask(f"it is {value}", load_settings(iceberg=True))


def test_unreadable_settings_are_no_way_out_for_a_secret_of_the_environment(monkeypatch):
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__CREDENTIAL", "client:pl4nted-client")
    assert "pl4nted" not in mask("it says client:pl4nted-client", None)


def repeat(_method, _path, headers, body):
    """A catalog that repeats, in its error, all that it was told."""
    told = f"no access with {headers.get('Authorization')} and {body}"
    return 403, {"error": {"message": told, "type": "ForbiddenException", "code": 403}}


def test_a_catalog_that_repeats_the_login_gives_it_to_no_report_event_check_or_command(configure, cli, monkeypatch, tmp_path):
    with json_server(repeat) as url:
        configure({"type": "rest", "uri": url, "token": "pl4nted-token"})
        lake = tmp_path / "lake"
        pipeline = without_spark(lake, iceberg=True, iceberg_catalog="lake")
        put(pipeline.lakehouse.table("silver_rummy_events"), pa.table({"_batch": pa.array([1], pa.int64())}))
        report = run_ended(pipeline)
        texts = [str(report.to_dict()), *map(str, event_rows(report, RunFacts("refresh", 1.0), pipeline.settings))]
        texts.append(iceberg_is_current(pipeline).summary)
        texts += [check.detail for check in run_checks(doctor(pipeline.settings), pipeline.settings)]
        for name, value in {"LAKEHOUSE": lake, "ICEBERG": "on", "ICEBERG_CATALOG": "lake"}.items():
            monkeypatch.setenv(f"GAME_EVENTS_{name}", str(value))
        said = cli("iceberg", "--sync", "--json")
        texts += [said.out, said.err]
    assert any("no access with" in text for text in texts)
    assert "pl4nted" not in "".join(texts)


@pytest.mark.parametrize("content", ["catalog: {lake: {token: pl4nted-token", "catalog:\n  lake: pl4nted-token"])
def test_a_file_that_pyiceberg_cannot_read_is_named_without_its_content(cli, monkeypatch, tmp_path, content):
    # pyiceberg reads it when it is imported.
    for name in [name for name in sys.modules if name.startswith("pyiceberg.catalog")]:
        monkeypatch.delitem(sys.modules, name)
    settings = {"LAKEHOUSE": str(tmp_path / "lake"), "ICEBERG": "on", "ICEBERG_CATALOG": "lake"}
    for name, value in settings.items():
        monkeypatch.setenv(f"GAME_EVENTS_{name}", value)
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    (tmp_path / ".pyiceberg.yaml").write_text(content)
    with pytest.raises(GameEventsError, match="pyiceberg") as raised:
        doctor(load_settings())["iceberg"]()
    said = cli("iceberg", "--json")
    assert said.code == 1
    assert "pyiceberg" in said.err
    assert "pl4nted" not in f"{raised.value}{said.out}{said.err}"
