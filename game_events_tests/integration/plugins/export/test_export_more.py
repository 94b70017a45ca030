"""The rest of an export's way: TLS, files, erased people, where secrets are not, the command line."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from deltalake import DeltaTable, write_deltalake

from game_events.errors import ConfigurationError, DataError
from game_events.pipeline.reporting.report import RunReport
from game_events.plugins.export.rows import file_rows, folder_table, new_files
from game_events.plugins.export.run import export_status
from game_events.plugins.export.tables import ExportTables
from game_events.plugins.governance.commits import remove_old_files
from game_events.plugins.governance.run import erase
from game_events_tests.support.fixtures.cli import Cli, cli  # noqa: F401 - a fixture
from game_events_tests.support.servers.rest_receiver import receiving
from game_events_tests.support.worlds.erasure import tables_of
from game_events_tests.support.worlds.export import World, offsets_of, texts_below

TOKEN = "planted-token-51c2"


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test's receiver")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, private = folder / "receiver.pem", folder / "receiver.key"
    pem.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return pem, private


def test_a_receiver_whose_certificate_is_not_trusted_gets_no_row_and_one_of_our_own_authority_gets_them_all(
    world: World, tmp_path: Path
):
    world.events(chess=10)
    tls = certificate(tmp_path)
    with receiving(tmp_path / "log", tls=tls) as receiver:
        with pytest.raises(ConfigurationError, match="GAME_EVENTS_TLS_CA_FILE"):
            world.export(receiver)
        assert receiver.calls == []
        assert world.export(receiver, tls_ca_file=tls[0]).parts["export"].delivered_rows == 10
        assert offsets_of(receiver) == world.offsets()


def test_files_are_sent_once_each_and_a_delta_table_that_was_rewritten_is_refused(world: World, tmp_path: Path):
    folder = tmp_path / "some files é"
    folder.mkdir()
    for part in range(3):
        numbers = pa.array(range(part * 10, part * 10 + 10), pa.int64())
        pq.write_table(pa.table({"_kafka_offset": numbers, "gamer_id": ["x"] * 10}), folder / f"part {part}.parquet")
    (folder / "_unfinished.parquet").write_bytes(b"no")
    with receiving(tmp_path / "log") as receiver:
        done = world.export(receiver, files=str(folder), rest_rows_per_call=4).parts["export"]
        assert (done.delivered_rows, done.calls) == (30, 9)
        assert sorted(r["_kafka_offset"] for r in receiver.rows) == list(range(30))
        assert world.export(receiver, files=str(folder)).parts["export"].calls == 0
        pq.write_table(pa.table({"_kafka_offset": pa.array([99], pa.int64())}), folder / "later.parquet")
        assert world.export(receiver, files=str(folder)).parts["export"].delivered_rows == 1

        delta = tmp_path / "theirs"
        for n in range(2):
            write_deltalake(delta, pa.table({"_kafka_offset": pa.array([200 + n], pa.int64())}), mode="append")
        assert world.export(receiver, files=str(delta)).parts["export"].delivered_rows == 2
        DeltaTable(delta).optimize.compact()
        with pytest.raises(DataError, match="compacted"):
            world.export(receiver, files=str(delta))
        with pytest.raises(ConfigurationError, match="not a folder"):
            world.export(receiver, files=str(tmp_path / "nowhere"))


def test_files_are_sent_whatever_their_names_and_columns_are_called_and_those_of_a_partitioned_table_whole(
    world: World, tmp_path: Path
):
    folder, partitioned = tmp_path / "a{b}", tmp_path / "partitioned"
    folder.mkdir()
    rows = {"a1": {"x": 1}, "a[1]": {"x": 2}, "c*": {"_row": "mine", "_file": "mine, too", "_metadata": 3}}
    for name, row in rows.items():
        pq.write_table(pa.Table.from_pylist([row]), folder / f"{name}.parquet")
    parted = [{"at": "é 1/2", "n": 7, "x": 1}, {"at": None, "n": 8, "x": 2}]
    write_deltalake(partitioned, pa.Table.from_pylist(parted), partition_by=["at", "n"])
    with receiving(tmp_path / "log") as receiver:
        assert world.export(receiver, files=str(folder)).parts["export"].delivered_rows == 3
        sent = [{name: value for name, value in row.items() if value is not None} for row in receiver.rows]
        assert sorted(sent, key=str) == sorted(rows.values(), key=str)
        assert world.export(receiver, files=str(partitioned)).parts["export"].delivered_rows == 2
        assert sorted(receiver.rows[3:], key=lambda row: row["x"]) == parted
        (folder / "cut off.parquet").write_bytes(b"PAR1 and no more")
        with pytest.raises(ConfigurationError, match=r"cannot be read together.*cut off.parquet"):
            world.export(receiver, files=str(folder))


def test_a_table_that_is_compacted_while_its_export_is_planned_is_sent_whole(world: World, tmp_path: Path):
    pipeline, folder = world.pipeline("http://127.0.0.1:1/"), tmp_path / "partitioned"
    for number in range(2):
        write_deltalake(folder, pa.table({"at": ["one"], "x": [number]}), partition_by=["at"], mode="append")
    place = folder_table(pipeline, str(folder))
    delta = place.open_to_read()
    files = new_files(ExportTables.of(pipeline.lakehouse, "gamer_id"), place, delta, None)
    DeltaTable(folder).optimize.compact()
    sent = file_rows(pipeline, place, delta, files).collect()
    assert sorted((json.loads(row["json"]) for row in sent), key=lambda row: row["x"]) == [
        {"at": "one", "x": number} for number in range(2)
    ]


def test_an_erased_person_is_neither_sent_nor_kept_among_planned_or_failed_calls(world: World, tmp_path: Path):
    world.events(chess=14)
    with receiving(tmp_path / "one", refuse_share=1.0) as receiver:
        world.export(receiver)
    world.events(chess=14)
    with receiving(tmp_path / "away", authorization=("A", "b")) as receiver, pytest.raises(ConfigurationError):
        world.export(receiver)
    assert {"export_calls", "export_failed_calls"} <= tables_of(world.settings(), "gamer-3")
    pipeline = world.pipeline(erasure_key="a key of a test's own", every_version_h=1e-6, replaced_files_h=1e-6)
    report = RunReport()
    wanted = erase(pipeline, report, frozenset({"gamer-3"}))
    remove_old_files(pipeline, report.parts["erasure"], wanted)
    assert (report.parts["erasure"].rows["export_calls"], report.parts["erasure"].rows["export_failed_calls"]) == (2, 2)
    assert tables_of(world.settings(), "gamer-3") == set()
    with receiving(tmp_path / "two") as receiver:
        assert world.export(receiver).parts["export"].delivered_rows == 12
        assert "gamer-3" not in {row["gamer_id"] for row in receiver.rows}
        assert export_status(pipeline)["waiting"]["rows"] == 0


def test_no_plan_of_sparks_shows_where_rows_go_or_with_which_credentials(
    world: World, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    world.events(chess=3)
    seen: list[str] = []
    frames = type(world.spark.range(1))
    collect = frames.collect

    def explained(frame):
        frame.explain("extended")
        seen.append(frame._jdf.queryExecution().toString() + frame._jdf.queryExecution().debug().toString())
        return collect(frame)

    monkeypatch.setattr(frames, "collect", explained)
    with receiving(tmp_path / "log") as receiver:
        world.export(receiver, rest_bearer_token=TOKEN, rest_calls_per_s=1_000)
        shown = "".join(seen) + "".join(capfd.readouterr())
        assert "SendChunks" in shown or "MapInArrow" in shown
        for secret in (TOKEN, str(receiver.port)):
            assert secret not in shown
    assert TOKEN.encode() not in texts_below(tmp_path / "lakehouse")


@pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning")
def test_the_command_line_exports_in_a_dagster_run_says_what_became_of_the_rows_and_shows_no_secret(
    world: World,
    tmp_path: Path,
    cli: Cli,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
):
    world.events(chess=8, uno=4)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    for name in ("lakehouse", "state_dir"):
        monkeypatch.setenv(f"GAME_EVENTS_{name.upper()}", str(getattr(world.settings(), name)))
    refused = cli("export", "run", "--json")
    assert refused.code == 1
    assert "GAME_EVENTS_REST_URL" in refused.result["error"]
    with receiving(tmp_path / "log", refuse_share=0.5, seed=1) as receiver:
        monkeypatch.setenv("GAME_EVENTS_REST_URL", receiver.url)
        monkeypatch.setenv("GAME_EVENTS_REST_API_KEY", TOKEN)
        monkeypatch.setenv("GAME_EVENTS_REST_ROWS_PER_CALL", "1")
        said = cli("rest", "run", "--json")
        assert said.code == 0, said.everything
        done = said.result["export"]
        assert done["dead_rows"] + done["delivered_rows"] == 12
        assert done["dead_rows"] > 0
        assert "rows are of failed calls" in said.err
        found = cli("export", "status", "--json")
        assert found.result["dead"]["rows"] == done["dead_rows"]
        kinds = cli("log", "--kind", "exported", "--json").result
        assert f'"rows": {done["delivered_rows"]}' in json.dumps(kinds)
    with receiving(tmp_path / "two") as receiver:
        monkeypatch.setenv("GAME_EVENTS_REST_URL", receiver.url)
        said = cli("export", "replay", "--status", "422", "--json")
        assert said.result["export"]["delivered_rows"] == done["dead_rows"], said.everything
        assert cli("export", "run", "--go-on", "go").code == 1
    for folder in ("lakehouse", "dagster", "state"):
        assert TOKEN.encode() not in texts_below(tmp_path / folder)
    assert TOKEN not in said.everything


def test_tables_of_an_export_say_of_themselves_what_they_hold(world: World, tmp_path: Path):
    world.events(chess=3)
    with receiving(tmp_path / "log") as receiver:
        world.export(receiver)
    tables = ExportTables.of(world.pipeline().lakehouse, "gamer_id")
    for table in (tables.planned, tables.deliveries):
        handle = table.open()
        assert handle is not None
        assert handle.metadata().description


def test_the_command_line_says_how_many_tasks_a_rate_needs_and_why(cli: Cli):  # noqa: F811
    said = cli("export", "size", "--rows-per-s", "1687", "--latency-ms", "95", "--rows-per-call", "10", "--json")
    assert (said.result["tasks"], said.result["calls_at_once"], said.result["cores"]) == (3, 17, 1)
    assert "Little's law" in said.err
    assert "local[3]" in said.err


def test_the_mock_api_says_that_its_port_is_taken(cli: Cli, tmp_path: Path):  # noqa: F811
    with receiving(tmp_path / "log") as receiver:
        said = cli("mock-api", "--port", str(receiver.port))
    assert said.code == 1
    assert "--port" in said.err
