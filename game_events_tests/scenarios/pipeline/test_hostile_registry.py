"""A registry that holds hostile schemas beside a good one: each harms only its own records, whoever asks for it."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from game_events.decoding.frame import RegistrySchema
from game_events.errors import DataError
from game_events.lakehouse.tables import BRONZE, QUARANTINE, Lakehouse
from game_events.pipeline.runs.preflight import environment_checks, run_checks
from game_events.pipeline.runs.refresh import refresh
from game_events.plugins.catalog.schema_history import SchemaHistory, origins
from game_events.plugins.catalog.schema_versions import MAX_DIFFS, changes_by_version
from game_events.schema_registry import SchemaRegistry
from game_events_tests.support.decoding.format_helpers import framed
from game_events_tests.support.decoding.hostile_schemas import BAD, ODD, commands
from game_events_tests.support.reconciliation import count, rows
from game_events_tests.support.servers.registry_proxy import JSON, RegistryProxy
from game_events_tests.support.worlds.topic import register, send_values

TIME = {"type": "long", "logicalType": "timestamp-micros"}
KINDS = {"game_name": "string", "gamer_id": "string", "event_timestamp": TIME}
GOOD = json.dumps({"type": "record", "name": "E", "fields": [{"name": n, "type": kind} for n, kind in KINDS.items()]})
#: Ids and subjects that the proxy answers for itself.
FIRST = 1_000_000_000
ROWS = 3_000


def serve(proxy: RegistryProxy, subject: str, schemas: dict[int, RegistrySchema]) -> None:
    """The proxy knows these ids, as versions of a subject, and each of their references, as a subject of its own."""
    numbers = list(schemas)
    texts = {f"ref-{i}-{at}": text for i, s in schemas.items() for at, (_, text) in enumerate(s.references)}

    def body(found: Any) -> tuple[int, str, bytes]:
        return 200, JSON, json.dumps(found).encode()

    def schema(i: int) -> dict[str, object]:
        known = schemas[i]
        references = [{"name": n, "subject": f"ref-{i}-{at}", "version": 1} for at, (n, _) in enumerate(known.references)]
        return {"id": i, "schema": known.text, "schemaType": known.format, "references": references}

    def answer(path: str) -> tuple[int, str, bytes] | None:
        match path.split("?", maxsplit=1)[0].strip("/").split("/"):
            case ["schemas", "ids", number, *_] if int(number) in schemas:
                return body(schema(int(number)))
            case ["subjects", name, "versions", _] if name in texts:
                return body({"subject": name, "version": 1, "id": 1, "schema": texts[name], "schemaType": "PROTOBUF"})
            case ["subjects", name, "versions"] if name == subject:
                return body(list(range(1, len(numbers) + 1)))
            case ["subjects", name, "versions", version] if name == subject:
                number = len(numbers) if version == "latest" else int(version)
                return body({"subject": subject, "version": number, **schema(numbers[number - 1])})
        return None

    proxy.answer = answer


def test_hostile_schemas_beside_a_good_one_harm_only_their_own_records(make_settings, make_pipeline, stack, tmp_path):
    marker, folder, secret = tmp_path / "ran", tmp_path / "out", tmp_path / "secret.env"
    folder.mkdir()
    secret.write_text("hunter2")
    hostile = [*BAD.values(), *ODD.values(), *(("PROTOBUF", *rest) for _, *rest in commands(marker, folder, secret))]
    schemas = {FIRST + n: RegistrySchema(FIRST + n, *given) for n, given in enumerate(hostile)}
    proxy = RegistryProxy(stack.schema_registry_url)
    try:
        settings = make_settings(schema_registry_url=proxy.url)
        direct = settings.model_copy(update={"schema_registry_url": stack.schema_registry_url})
        good = register(direct, GOOD, "AVRO", subject=f"{settings.kafka_topic}-good")
        subject = f"{settings.kafka_topic}-value"
        serve(proxy, subject, schemas)
        values = [framed(b"\x08game" + b"\x02" + str(n % 10).encode() + b"\x02", good) for n in range(ROWS)]
        for n, schema_id in enumerate(schemas):
            values.insert(n * 7, framed(b"\0\x0a\xff\xff\x01", schema_id))
        send_values(settings, values)

        report = refresh(make_pipeline(settings))

        assert report.success, report.errors
        assert count(settings, "silver_game_events") == ROWS
        found = rows(settings, QUARANTINE, "SELECT _schema_id, reason, detail FROM t")
        assert {i for i, _, _ in found} <= set(schemas)
        assert {FIRST + n for n in range(len(BAD))} <= {i for i, reason, _ in found if reason == "BAD_SCHEMA"}
        # Those that are only odd may be decoded: a record of three bytes is one of theirs, or not.
        assert count(settings, BRONZE) + len(found) == len(values)
        assert not marker.exists()
        assert not list(folder.iterdir())
        assert not any("hunter2" in detail for _, _, detail in found)
        again = refresh(make_pipeline(settings))
        assert again.success, again.errors

        lakehouse = Lakehouse.of(settings)
        history = SchemaHistory(SchemaRegistry(settings), lakehouse, subject)
        versions = history.versions()
        assert len(versions) == len(schemas)
        assert len(changes_by_version(history, versions, versions)) == MAX_DIFFS
        for version in versions:
            with suppress(DataError):  # nothing else
                history.fields(version)
        assert isinstance(origins(lakehouse), list)
        selected = make_settings(schema_registry_url=proxy.url, message_types="o.Nothing")
        (types,) = run_checks({"message types": environment_checks(selected)["message types"]}, selected)
        assert types.ok, types.detail
    finally:
        proxy.close()
