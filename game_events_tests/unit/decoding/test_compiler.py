"""Schemas are compiled in a process of their own: whatever one does, it harms only its own records, and runs nothing."""

import copy
import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from game_events.decoding.columns import ColumnMap
from game_events.decoding.compiler_child import CompilerLimits
from game_events.decoding.decoder import BatchDecoder, DecodePlan, compile_schema, first_decoders
from game_events.decoding.frame import Reason, RegistrySchema
from game_events.errors import DataError
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.schemas.catalog import MAX_TYPES, SchemaCatalog
from game_events.schema_registry import SchemaLookup
from game_events_tests.support.decoding.hostile_schemas import BAD, MAIN, ODD, as_base64, avro, commands, described

GOOD = RegistrySchema(1, "PROTOBUF", MAIN)


class Registry(SchemaLookup):
    """Knows schemas by id."""

    url = "http://registry"

    def __init__(self, schemas):
        self._schemas = schemas

    def fetch(self, schema_id):
        return RegistrySchema(schema_id, *self._schemas[schema_id])


def catalog(tmp_path, *schemas):
    return SchemaCatalog(Registry(dict(enumerate(schemas))), Lakehouse(str(tmp_path)))


def paths(schema):
    return [(0,)] if schema[0] == "PROTOBUF" else [()]


@pytest.mark.parametrize("name", BAD)
def test_a_schema_that_cannot_be_decoded_costs_only_its_own_records(name, tmp_path):
    made = catalog(tmp_path, BAD[name], ("PROTOBUF", MAIN))
    plan = made.plan(ColumnMap(), [(0, path) for path in ((0,), ())] + [(1, (0,))])
    assert plan.types == {(1, (0,))}
    ((reason, detail),) = {plan.rejected[key] for key in plan.rejected}
    assert reason is Reason.BAD_SCHEMA
    assert "schema id 0" in detail
    assert len(detail) < 3_000
    assert pa.array([detail])[0].as_py() == detail
    with pytest.raises(DataError):
        made.messages(0)
    assert made.names(1) == ["M"]
    made.names(0)


@pytest.mark.parametrize("name", ODD)
def test_a_schema_that_is_only_odd_is_decoded_or_refused(name, tmp_path):
    plan = catalog(tmp_path, ODD[name], ("PROTOBUF", MAIN)).plan(
        ColumnMap(), [(0, path) for path in paths(ODD[name])] + [(1, (0,))]
    )
    assert (1, (0,)) in plan.types
    assert all(reason is Reason.BAD_SCHEMA for reason, _ in plan.rejected.values())
    assert {i for i, _ in plan.types} | {i for i, _ in plan.rejected} == {0, 1}


def test_nothing_of_a_schema_is_an_option_a_file_or_a_path(tmp_path):
    folder, marker, secret = tmp_path / "out", tmp_path / "ran", tmp_path / "secret.env"
    folder.mkdir()
    secret.write_text("PASSWORD=hunter2\n--version\n")
    for what, text, references in commands(marker, folder, secret):
        said = ""
        try:
            compile_schema(RegistrySchema(8, "PROTOBUF", text, references))
        except DataError as error:
            said = str(error)
        assert not marker.exists(), what
        assert not list(folder.iterdir()), what
        assert "hunter2" not in said, what


@pytest.mark.parametrize(
    "name", ["../../x.proto", "/etc/x.proto", "a/../../x.proto", "f.proto", "known.bin", "text/f.proto", "schema_5.proto"]
)
def test_the_name_of_a_reference_is_only_a_name(name):
    leaf = 'syntax = "proto3"; message Leaf { string s = 1; }'
    text = f'syntax = "proto3"; import "{name}"; message M {{ Leaf leaf = 1; }}'
    file = described(dependency=[name])
    file.message_type[0].field.add(name="leaf", number=2, type=11, type_name=".Leaf", label=1)
    for main in (text, as_base64(file)):
        try:
            made = compile_schema(RegistrySchema(5, "PROTOBUF", main, ((name, leaf),)))
        except DataError as error:
            assert "does not compile" in str(error)
            assert ".." in name or name.startswith("/")
        else:
            assert "leaf" in made.message((0,)).fields_by_name


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_the_child_has_neither_environment_nor_open_files_of_its_parent(own_child, tmp_path, monkeypatch):
    monkeypatch.setenv("GAME_EVENTS_SECRET", "hunter2")
    with (tmp_path / "open").open("w") as held:
        os.set_inheritable(held.fileno(), True)
        compile_schema(GOOD)
    process = Path(f"/proc/{own_child._process.pid}")
    assert b"hunter2" not in (process / "environ").read_bytes()
    assert str(tmp_path / "open") not in {str(fd.readlink()) for fd in (process / "fd").iterdir()}
    assert process.stat().st_uid == os.getuid()
    assert (process / "cwd").readlink() == Path("/")


def test_a_schema_that_takes_too_long_is_refused_and_the_next_one_is_compiled(own_child):
    own_child.limits = CompilerLimits(work_s=0.2)
    compile_schema(GOOD)
    with pytest.raises(DataError, match=r"schema id 7 does not compile: it takes more than 0.2 s of work"):
        compile_schema(RegistrySchema(7, *BAD["steps without end"]))
    assert compile_schema(GOOD).has((0,))


def test_a_schema_that_needs_too_much_memory_is_refused_and_the_next_one_is_compiled(own_child):
    own_child.limits = CompilerLimits(memory=2**26)
    compile_schema(GOOD)
    with pytest.raises(DataError, match="schema id 7 does not compile: it takes more than 64 MiB of memory"):
        compile_schema(RegistrySchema(7, "JSON", "[" + "[0]," * 1_000_000 + "0]"))
    assert compile_schema(GOOD).has((0,))


def test_a_child_that_was_ended_from_outside_is_started_again_and_no_schema_is_blamed(own_child):
    compile_schema(GOOD)
    os.kill(own_child._process.pid, signal.SIGKILL)
    assert compile_schema(GOOD).has((0,))


def test_after_an_interrupt_the_next_schema_gets_its_own_answer(own_child, monkeypatch):
    compile_schema(GOOD)

    def interrupted(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(
            own_child._process, "stdout", SimpleNamespace(readline=interrupted, close=own_child._process.stdout.close)
        )
        with pytest.raises(KeyboardInterrupt):
            compile_schema(RegistrySchema(2, "PROTOBUF", 'syntax = "proto3"; message Two { string two = 1; }'))
    other = compile_schema(RegistrySchema(3, "PROTOBUF", 'syntax = "proto3"; message Three { string three = 1; }'))
    assert (other.schema_id, other.name_of((0,))) == (3, "Three")


def test_a_child_that_ends_with_each_new_start_is_the_schemas_fault(own_child):
    def end():
        os.kill(own_child._process.pid, signal.SIGSEGV)
        own_child._process.wait()

    own_child.started = end
    with pytest.raises(DataError, match=r"schema id 1 does not compile: .* breaks the compiler"):
        compile_schema(GOOD)


def nested_avro(levels):
    kind = "string"
    for n in range(levels):
        fields = [{"name": "a", "type": ["null", {"type": "array", "items": kind}]}]
        kind = {"type": "record", "name": f"r{n}", "fields": fields}
    return RegistrySchema(1, "AVRO", json.dumps(kind))


def chained_avro(length):
    texts = [avro([{"name": "a", "type": f"c{n - 1}" if n else "string"}], f"c{n}") for n in range(length)]
    return RegistrySchema(1, "AVRO", texts[-1], tuple((f"c{n}", text) for n, text in enumerate(texts[:-1])))


def chained_protobuf(length):
    texts = [
        'syntax = "proto3"; '
        + (f'import "p{n - 1}.proto"; ' if n else "")
        + f"message P{n} {{ {f'P{n - 1}' if n else 'string'} a = 1; }}"
        for n in range(length)
    ]
    return RegistrySchema(1, "PROTOBUF", texts[-1], tuple((f"p{n}.proto", text) for n, text in enumerate(texts[:-1])))


@pytest.mark.parametrize(
    "schema",
    [nested_avro(80), chained_avro(200), chained_protobuf(400)],
    ids=["nested Avro", "chained Avro", "chained protobuf"],
)
def test_a_schema_that_is_deep_is_decoded_wherever_its_decoder_is_made(schema):
    made = compile_schema(schema)
    path = made.paths()[0]
    # As in a process that has compiled nothing yet.
    sys.setrecursionlimit(1_000)

    def on_a_deeper_stack(levels):
        return on_a_deeper_stack(levels - 1) if levels else first_decoders(copy.deepcopy(made), [path])[0]

    assert on_a_deeper_stack(600).message == made.name_of(path)


def test_a_worker_makes_the_decoder_of_a_deep_schema():
    made = compile_schema(nested_avro(100))
    columns = ColumnMap().with_message("r99", first_decoders(made, [()])[0].fields)
    plan = DecodePlan({1: made}, frozenset({(1, ())}), {}, columns)
    worker = BatchDecoder(copy.deepcopy(plan))
    sys.setrecursionlimit(1_000)
    assert worker._decoder((1, ())).message == "r99"


def test_all_message_types_of_a_schema_are_one_request(own_child):
    made = compile_schema(RegistrySchema(1, "PROTOBUF", many_types(600)))
    requests = []
    own_child.answered = lambda request, answer: requests.append(request) or answer
    decoders = first_decoders(made, made.paths())
    assert [decoder.message for decoder in decoders] == [f"T{n}" for n in range(600)]
    assert len(requests) == 1


def many_types(count, fields=15):
    inside = " ".join(f"string f{n} = {n + 1};" for n in range(fields))
    return 'syntax = "proto3"; ' + " ".join(f"message T{n} {{ {inside} }}" for n in range(count))


def test_a_schema_of_very_many_message_types_is_looked_at_in_part_and_what_occurred_is_among_it(tmp_path):
    made = catalog(tmp_path, ("PROTOBUF", many_types(20_000, 0)))
    found = made.messages(0, {"T19999"})
    assert list(found) == [*(f"T{n}" for n in range(MAX_TYPES - 1)), "T19999"]
    assert made.left_out(0, {"T19999"}) == 20_000 - MAX_TYPES


def test_nothing_of_a_usual_schema_is_left_out(tmp_path):
    made = catalog(tmp_path, ("PROTOBUF", MAIN), ("AVRO", avro([{"name": "a", "type": "string"}])))
    assert [made.left_out(n) for n in range(2)] == [0, 0]


def test_the_child_ends_when_it_has_nothing_to_do(own_child):
    own_child.limits = CompilerLimits(idle_s=0.1)
    compile_schema(GOOD)
    assert own_child._process.wait(60) == 0
    assert compile_schema(GOOD).has((0,))


def test_a_forked_process_compiles_too():
    known = compile_schema(GOOD)
    receive, send = multiprocessing.Pipe(duplex=False)
    forked = multiprocessing.get_context("fork").Process(target=lambda: send.send(compile_schema(GOOD)))
    forked.start()
    assert receive.recv() == known
    forked.join()
    assert compile_schema(GOOD) == known


def test_compiling_says_nothing_on_stderr_and_leaves_no_file(capfd, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for text in (MAIN, "no schema", MAIN.replace("string", "strin")):
        try:
            compile_schema(RegistrySchema(1, "PROTOBUF", text))
        except DataError:
            continue
    assert capfd.readouterr().err == ""
    assert list(tmp_path.iterdir()) == []
