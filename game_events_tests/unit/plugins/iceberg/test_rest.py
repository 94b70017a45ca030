"""Connections to a REST catalog: whom they trust, how long they wait, that they end."""

from __future__ import annotations

import threading
import time

import certifi
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from game_events.config.settings import load_settings
from game_events.errors import TransientError
from game_events.pipeline.reporting.report import RunReport
from game_events.plugins.iceberg.catalog import open_catalog
from game_events.plugins.iceberg.lag import doctor, iceberg_is_current
from game_events.plugins.iceberg.observer import IcebergObserver
from game_events.plugins.iceberg.rest import BoundedRestCatalog
from game_events_tests.support.iceberg import run_ended
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.servers.json_server import json_server
from game_events_tests.support.servers.secured_broker import make_certificates
from game_events_tests.support.tables import put
from game_events_tests.support.waiting import until

CATALOG = "PYICEBERG_CATALOG__LAKE__"


def empty(method, path, *_):
    """A catalog without tables, which takes none."""
    if path.startswith("/v1/config"):
        return 200, {"defaults": {}, "overrides": {}}
    if method == "POST" and path.endswith("/namespaces"):
        return 200, {"namespace": ["game_events"], "properties": {}}
    return 404, {"error": {"message": "no such table", "type": "NoSuchTableException", "code": 404}}


@pytest.fixture(params=[True, False], ids=["environment with authorities", "environment without"])
def _authorities(request, monkeypatch):
    """The system's own authorities may be named in the environment, for all programs."""
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    if request.param:
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", certifi.where())


@pytest.fixture
def pipeline(tmp_path):
    def made(**settings):
        made = without_spark(tmp_path / "lake", iceberg=True, iceberg_catalog="lake", **settings)
        put(made.lakehouse.table("silver_rummy_events"), pa.table({"_batch": pa.array([1], pa.int64())}))
        return made

    return made


@pytest.mark.usefixtures("_authorities")
def test_the_authority_of_the_settings_is_trusted_and_no_other(pipeline, tmp_path, monkeypatch):
    authority, stranger = make_certificates(tmp_path)
    with json_server(empty, tmp_path / "broker.pem") as url:
        monkeypatch.setenv(f"{CATALOG}URI", url)  # the type is told by the address
        asked = pipeline(tls_ca_file=authority)
        assert "silver_rummy_events (none of 0)" in iceberg_is_current(asked).summary
        refused = run_ended(pipeline(tls_ca_file=stranger))
    assert "GAME_EVENTS_TLS_CA_FILE" in refused.notices[0]


@pytest.mark.usefixtures("_authorities")
def test_an_authority_of_pyicebergs_own_configuration_goes_before(tmp_path, monkeypatch):
    authority, stranger = make_certificates(tmp_path)
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    settings = load_settings(lakehouse=str(tmp_path), iceberg=True, iceberg_catalog="lake", tls_ca_file=stranger)
    with json_server(empty, tmp_path / "broker.pem") as url:
        own = f"catalog:\n  lake:\n    type: rest\n    uri: {url}\n    ssl:\n      cabundle: {authority}\n"
        (tmp_path / ".pyiceberg.yaml").write_text(own)
        open_catalog(settings, without_spark(tmp_path).lakehouse).close()


def test_a_server_that_says_nothing_is_left_and_no_thread_waits_for_it(pipeline, monkeypatch):
    answers = threading.Event()

    def silent(*asked):
        answers.wait(30)
        return empty(*asked)

    with json_server(silent) as url:
        monkeypatch.setenv(f"{CATALOG}TYPE", "rest")
        monkeypatch.setenv(f"{CATALOG}URI", url)
        hanging = pipeline(iceberg_timeout_s=0.5)
        report = RunReport()
        observer = IcebergObserver(hanging, "refresh", True)
        observer.part(report)
        assert "the next run catches up" in report.notices[0]
        until(lambda: not any(thread.name == "iceberg" for thread in threading.enumerate()), 10)
        began = time.monotonic()
        assert not iceberg_is_current(hanging).passed
        with pytest.raises(TransientError, match=r"within 0.5 s"):
            doctor(hanging.settings)["iceberg"]()
        assert time.monotonic() - began < 10
        answers.set()


@pytest.mark.parametrize(("kind", "catalog"), [("rest", BoundedRestCatalog), ("sql", SqlCatalog)])
def test_connections_end_with_what_asked(pipeline, tmp_path, monkeypatch, kind, catalog):
    closed = []
    close = catalog.close
    monkeypatch.setattr(catalog, "close", lambda asked: closed.append(asked) or close(asked))
    with json_server(empty) as url:
        monkeypatch.setenv(f"{CATALOG}TYPE", kind)
        address = url if kind == "rest" else f"sqlite:///{tmp_path}/x.db"
        monkeypatch.setenv(f"{CATALOG}URI", address)
        for ask in (run_ended, iceberg_is_current, doctor_of):
            ask(pipeline())
    assert [asked.properties["uri"] for asked in closed].count(address) == 3


def doctor_of(pipeline):
    return doctor(pipeline.settings)["iceberg"]()
