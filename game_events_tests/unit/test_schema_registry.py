"""What a registry answers is bounded, in time, in length and in what it leads to: one schema never stops the others."""

import contextlib
import gzip
import json
import ssl
import threading
import time
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pydantic import SecretStr

from game_events.config.settings import Settings
from game_events.decoding.columns import ColumnMap
from game_events.decoding.frame import Reason
from game_events.errors import DataError, TransientError
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.schemas.archive import SchemaArchive
from game_events.pipeline.schemas.catalog import SchemaCatalog
from game_events.schema_registry import SchemaLimits, SchemaRegistry, registry_client


@pytest.fixture
def served():
    """Path -> JSON to answer with, or a function that writes the answer's body piece by piece."""
    answers = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            answer = answers.get(self.path.split("?")[0])
            answers.update(accepted=self.headers["Accept-Encoding"], login=self.headers["Authorization"])
            self.send_response(404 if answer is None else answers.get("status", 200))
            self.send_header("Content-Type", "application/json")
            if answers.get("packed"):
                self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            if callable(answer):
                try:
                    answer(self.wfile)
                except OSError:
                    return
            else:
                self.wfile.write(json.dumps(answer or {"error_code": 40403, "message": "not found"}).encode())

        def log_message(self, *_):
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    answers["url"] = f"http://127.0.0.1:{server.server_port}"
    yield answers
    server.shutdown()
    server.server_close()


def registry(served, timeout_s=None, clock=time.monotonic, **limits):
    settings = Settings.model_construct(schema_registry_url=served["url"], schema_registry_user=None, tls_ca_file=None)
    return SchemaRegistry(settings, timeout_s, limits=SchemaLimits(**limits), clock=clock)


def good(text='"string"', references=()):
    return {"schema": text, "schemaType": "AVRO", "references": list(references)}


def reference(name):
    return {"name": name, "subject": name, "version": 1}


def version(name, *references):
    return {"subject": name, "version": 1, "id": 9, **good(references=[reference(r) for r in references])}


def test_an_answer_that_never_ends_is_given_up_as_too_long_and_the_next_schema_is_read(served, tmp_path):

    def endless(body):
        while True:
            body.write(b" " * 2**12)

    served |= {"/schemas/ids/1": endless, "/schemas/ids/2": good()}
    client = registry(served, answer_bytes=2**20)
    with pytest.raises(DataError, match=r"schema id 1 .* longer than 1 MiB"):
        client.fetch(1)
    plan = SchemaCatalog(client, Lakehouse(str(tmp_path))).plan(ColumnMap(), [(1, ()), (2, ())])
    assert plan.types == {(2, ())}
    assert plan.rejected[(1, ())][0] is Reason.BAD_SCHEMA


def test_a_packed_answer_is_not_asked_for_and_never_unpacked(served):
    """Its length is counted as it comes: a small one could hold gigabytes."""
    served |= {"/schemas/ids/1": good("x" * 1_000), "/schemas/ids/2": lambda body: body.write(gzip.compress(b" " * 2**24))}
    client = registry(served, answer_bytes=2**20)
    assert client.fetch(1) is not None
    assert served["accepted"] == "identity"
    served["packed"] = True
    with pytest.raises(TransientError, match="gave no usable answer for schema id 2"):
        client.fetch(2)


@pytest.mark.parametrize("piece", [b" ", b""], ids=["byte by byte", "never"])
def test_an_answer_that_comes_too_slowly_is_given_up(served, piece):
    stop = threading.Event()

    def slow(body):
        while not stop.wait(0.05):  # each piece comes long before the client's own time-out
            body.write(piece)

    served["/schemas/ids/1"] = slow
    with pytest.raises(TransientError, match=r"gave no usable answer for schema id 1.*doctor"):
        registry(served, 0.3).fetch(1)
    stop.set()


def test_references_in_a_circle_are_read_once(served):
    served |= {"/schemas/ids/1": good(references=[reference("a")])}
    served |= {"/subjects/a/versions/1": version("a", "b"), "/subjects/b/versions/1": version("b", "a")}
    assert [name for name, _ in registry(served).fetch(1).references] == ["b", "a"]


def test_more_references_than_there_may_be_harm_only_their_schema(served, tmp_path):
    served |= {"/schemas/ids/1": good(references=[reference("r0")]), "/schemas/ids/2": good()}
    served |= {f"/subjects/r{n}/versions/1": version(f"r{n}", f"r{n + 1}") for n in range(100)}
    client = registry(served, references=20)
    plan = SchemaCatalog(client, Lakehouse(str(tmp_path))).plan(ColumnMap(), [(1, ()), (2, ())])
    assert plan.types == {(2, ())}
    assert "imports more than 20 others" in plan.rejected[(1, ())][1]


def test_references_that_are_too_long_all_together_harm_only_their_schema(served, tmp_path):
    """Each of them is one that may be."""
    names, long = [f"r{n}" for n in range(20)], "é" * 50_000  # 100,000 bytes
    asked = []

    def answer(name):
        def write(body):
            asked.append(name)
            body.write(json.dumps({"subject": name, "version": 1, "id": 9, **good(long)}).encode())

        return write

    served |= {"/schemas/ids/1": good(references=[reference(n) for n in names]), "/schemas/ids/2": good()}
    served |= {"/schemas/ids/3": good(references=[reference(n) for n in names[:9]])}
    served |= {f"/subjects/{name}/versions/1": answer(name) for name in names}
    client = registry(served, schema_bytes=2**20)
    plan = SchemaCatalog(client, Lakehouse(str(tmp_path))).plan(ColumnMap(), [(1, ()), (2, ())])
    assert plan.types == {(2, ())}
    reason, detail = plan.rejected[(1, ())]
    assert reason is Reason.BAD_SCHEMA
    assert "with those that it imports it is longer than 1 MiB" in detail
    assert len(asked) == 11, "the rest is asked for, too"
    assert len(client.fetch(3).references) == 9


def test_references_that_take_too_long_all_together_are_given_up_and_go_on_where_they_were(served):
    """Each of them comes in time. What has come is not asked for again, so a registry that is only slow is read in the end."""
    now, asked = [0.0], []

    def answer(name):
        def write(body):
            asked.append(name)
            now[0] += 9
            body.write(json.dumps(version(name)).encode())

        return write

    names = [f"r{n}" for n in range(10)]
    served |= {"/schemas/ids/1": good(references=[reference(n) for n in names]), "/schemas/ids/2": good()}
    served |= {f"/subjects/{name}/versions/1": answer(name) for name in names}
    client = registry(served, clock=lambda: now[0])
    with pytest.raises(TransientError, match=r"schema id 1: .* more than 60 s"):
        client.fetch(1)
    assert asked == names[:7]
    assert client.fetch(2) is not None, "the registry is not away"
    assert [name for name, _ in client.fetch(1).references] == names
    assert asked == names


def test_half_a_character_in_a_text_can_be_archived(served, tmp_path):
    served["/schemas/ids/1"] = good('{"type": "record", "name": "\ud800", "fields": []}')
    catalog = SchemaCatalog(registry(served), Lakehouse(str(tmp_path)))
    assert catalog.plan(ColumnMap(), [(1, ())]).rejected[(1, ())][0] is Reason.BAD_SCHEMA
    assert catalog.archive([1]) == [1]


@pytest.mark.parametrize("answer", [[], "text", {"schema": 5}, {"schema": None}, {"references": 7, "schema": "x"}, None])
def test_an_answer_of_another_shape_is_an_error_of_ours(served, answer, tmp_path):
    served |= {"/schemas/ids/1": answer}
    try:
        SchemaCatalog(registry(served), Lakehouse(str(tmp_path))).plan(ColumnMap(), [(1, ())])
    except TransientError as error:
        assert "schema id 1" in str(error)


@pytest.mark.parametrize("numbers", [[1, "a"], [1, None], {"a": 1}, [[1]], True, "text", 7])
def test_version_numbers_of_another_shape_are_an_error_of_ours(served, numbers):
    served["/subjects/s/versions"] = numbers
    with pytest.raises(TransientError, match="gave no usable answer for subject 's'"):
        registry(served).versions("s")


@pytest.mark.parametrize("strange", [1.5, "a", None])
def test_ids_of_another_shape_are_left_out(served, strange):
    served |= {"/subjects/s/versions": [1], "/subjects/s/versions/1": version("s") | {"id": strange}}
    served["/subjects/s/versions/latest"] = version("s") | {"id": strange}
    assert registry(served).versions("s") == []
    assert registry(served).newest("s") is None


@pytest.mark.parametrize("strange", [{"name": {}}, {"name": [1]}, {"subject": {}}, {"version": 1.5}, {"version": "latest"}])
def test_references_of_another_shape_are_left_out(served, strange):
    served["/schemas/ids/1"] = good(references=[reference("r") | strange])
    assert registry(served).fetch(1).references == ()


def test_a_subject_with_versions_without_end_is_given_up(served):
    now, asked = [0.0], []

    def answer(body):
        asked.append(now[0])
        now[0] += 9
        body.write(json.dumps(version("s")).encode())

    served["/subjects/s/versions"] = list(range(1_000_000))
    served |= {f"/subjects/s/versions/{number}": answer for number in range(100)}
    with pytest.raises(TransientError, match="'s' has more versions than it names in time"):
        registry(served, clock=lambda: now[0]).versions("s")
    assert len(asked) == 7


def test_a_page_in_place_of_an_answer_fills_no_log_and_repeats_no_login(served, caplog):
    def page(body):
        body.write(f"<p>{served['login']}, planted-password</p>{'x' * 100_000}".encode())

    served |= {"/schemas/ids/1": page, "status": 500}
    login = {"schema_registry_user": "me", "schema_registry_password": SecretStr("planted-password"), "tls_ca_file": None}
    settings = Settings.model_construct(schema_registry_url=served["url"], **login)
    with pytest.raises(TransientError, match=r"answered schema id 1 with 500: .*\*\*\*, \*\*\*") as raised:
        SchemaRegistry(settings, retries=0).fetch(1)
    texts = caplog.text + "".join(traceback.format_exception(raised.value))
    assert "planted" not in texts
    assert served["login"].removeprefix("Basic ") not in texts
    assert len(texts) < 10_000


def test_an_address_that_is_none_is_an_error_of_ours():
    settings = Settings.model_construct(schema_registry_url="http://r:port", schema_registry_user=None, tls_ca_file=None)
    with pytest.raises(TransientError, match="is GAME_EVENTS_SCHEMA_REGISTRY_URL right"):
        SchemaRegistry(settings, retries=0).fetch(1)


RECORD = '{"type": "record", "name": "T", "fields": [{"name": "e", "type": "E"}]}'


def imported(symbol):
    text = json.dumps({"type": "enum", "name": "E", "symbols": [symbol]})
    return {"/subjects/e/versions/1": {"subject": "e", "version": 1, "id": 9, **good(text)}}


def planned(served, tmp_path, **options):
    """What a process plans for schema 1, which it then archives."""
    catalog = SchemaCatalog(registry(served), Lakehouse(str(tmp_path)), **options)
    plan = catalog.plan(ColumnMap(), [(1, ())])
    catalog.archive([1])
    return plan


def test_an_archived_schema_is_decoded_whatever_reference_the_registry_loses_later(served, tmp_path):
    served |= {"/schemas/ids/1": good(RECORD, [reference("e")]), **imported("A")}
    assert planned(served, tmp_path).types == {(1, ())}
    del served["/subjects/e/versions/1"]
    assert planned(served, tmp_path).types == {(1, ())}
    served |= imported("B")
    ((reason, detail),) = planned(served, tmp_path).rejected.values()
    assert reason is Reason.REGISTRY_CHANGED
    assert "symbol 0 of the enum E is B instead of A" in detail


def test_a_schema_that_was_archived_without_a_reference_is_decoded_once_the_registry_has_it_again(served, tmp_path):
    """Of a type that is not selected, records are kept, and their schema archived, whether it compiles or not."""
    served |= {"/schemas/ids/1": good(RECORD, [reference("e")])}
    assert planned(served, tmp_path, selected={"other"}).undecoded == {(1, ())}
    served |= imported("A")
    assert planned(served, tmp_path, selected={"other"}).undecoded == {(1, ())}
    assert planned(served, tmp_path).types == {(1, ())}
    # What it is decoded by is archived: without the registry, too, and another meaning of it is refused.
    del served["/schemas/ids/1"]
    assert SchemaArchive(Lakehouse(str(tmp_path))).read()[1].references != ()
    served |= {"/schemas/ids/1": good(RECORD, [reference("e")]), **imported("B")}
    assert planned(served, tmp_path).rejected.keys() == {(1, ())}
    served |= {"/schemas/ids/1": good(RECORD, [reference("x"), reference("y")])}
    served |= {f"/subjects/{name}/versions/1": version(name) for name in "xy"}
    assert planned(served, tmp_path).types == {(1, ())}, "other references do not replace it"


def test_another_meaning_of_an_archived_id_quarantines_its_own_records_until_the_registry_is_right_again(served, tmp_path):
    """A type that is not selected, too: its records would be kept as records of the archived schema."""
    served |= {"/schemas/ids/1": good('{"type": "record", "name": "T", "fields": []}'), "/schemas/ids/2": good()}
    assert planned(served, tmp_path).types == {(1, ())}
    served |= {"/schemas/ids/1": good('{"type": "record", "name": "U", "fields": []}')}
    plan = planned(served, tmp_path, selected={"T", "string"})
    assert not plan.undecoded
    catalog = SchemaCatalog(registry(served), Lakehouse(str(tmp_path)))
    plan = catalog.plan(ColumnMap(), [(1, ()), (2, ())])
    assert plan.types == {(2, ())}
    ((reason, detail),) = plan.rejected.values()
    assert reason is Reason.REGISTRY_CHANGED
    assert f"{served['url']} gives schema id 1 another meaning" in detail
    assert "its type is record U instead of record T" in detail
    assert catalog.archive([1]) == []
    served |= {"/schemas/ids/1": good('{"fields": [], "name": "T", "type": "record"}')}
    assert catalog.plan(ColumnMap(), [(1, ())]).rejected, "it was asked a moment ago"
    assert planned(served, tmp_path).types == {(1, ())}


def test_another_spelling_of_an_archived_schema_changes_nothing(served, tmp_path):
    served |= {"/schemas/ids/1": good(RECORD, [reference("e")]), **imported("A")}
    planned(served, tmp_path)
    served |= {"/schemas/ids/1": good(json.dumps(json.loads(RECORD) | {"doc": "x"}, sort_keys=True), [reference("e")])}
    assert planned(served, tmp_path).types == {(1, ())}
    assert SchemaArchive(Lakehouse(str(tmp_path))).read()[1].text == RECORD


@pytest.mark.parametrize(
    ("url", "proxy", "is_checked"),
    [
        ("http://r:8081", None, False),
        ("http://r:8081", "https://proxy:1", True),
        ("https://r", None, True),
        ("http://r:8081, https://s", None, True),
    ],
)
def test_certificates_are_checked_where_anything_is_encrypted(url, proxy, is_checked, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    if proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy)
    settings = Settings.model_construct(schema_registry_url=url, schema_registry_user=None, tls_ca_file=None)
    with contextlib.closing(registry_client(settings)._rest_client.session) as session:
        assert (session._transport._pool._ssl_context.verify_mode == ssl.CERT_REQUIRED) == is_checked
