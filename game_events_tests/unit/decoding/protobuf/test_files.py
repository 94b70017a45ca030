"""Compiling a schema with all that it imports, in this process; what the child process adds is in `test_compiler`."""

import base64
import os

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from game_events.decoding.compiler_process import answer_request
from game_events.decoding.frame import RegistrySchema
from game_events.decoding.protobuf.files import STDERR, compile_files
from game_events.errors import DataError

PLAYER = 'syntax = "proto3"; package p; message Player { string id = 1; }'
EVENT = 'syntax = "proto3"; package e; import "player.proto"; message Event { p.Player player = 1; }'


@pytest.fixture(autouse=True)
def errors_in_a_file(tmp_path):
    """As in the child: protoc's messages are read from the file behind stderr."""
    kept = os.dup(STDERR)
    with (tmp_path / "stderr").open("w+b") as file:
        os.dup2(file.fileno(), STDERR)
        try:
            yield
        finally:
            os.dup2(kept, STDERR)
            os.close(kept)


@pytest.fixture
def compiled(tmp_path):
    """Compiles a text with references; returns its files by name."""

    def compile_text(text, *references):
        folder = tmp_path / "compiler"
        folder.mkdir(exist_ok=True)
        found = compile_files(RegistrySchema(7, "PROTOBUF", text, references), folder)
        return {file.name: file for file in FileDescriptorSet.FromString(found.files).file}

    return compile_text


def messages(file):
    return [message.name for message in file.message_type]


def as_base64(file):
    return base64.b64encode(file.SerializeToString()).decode()


def test_a_schema_and_its_references_compile_dependencies_first(compiled):
    files = compiled(EVENT, ("player.proto", PLAYER))
    assert list(files) == ["player.proto", "schema_7.proto"]
    assert messages(files["schema_7.proto"]) == ["Event"]


def test_a_reference_that_is_imported_twice_is_compiled_once(compiled):
    team = 'syntax = "proto3"; package t; import "player.proto"; message Team { repeated p.Player players = 1; }'
    both = 'syntax = "proto3"; import "player.proto"; import "team.proto"; message Both { p.Player a = 1; t.Team b = 2; }'
    assert list(compiled(both, ("team.proto", team), ("player.proto", PLAYER))) == [
        "player.proto",
        "team.proto",
        "schema_7.proto",
    ]


def test_a_name_that_a_reference_has_is_not_the_schemas_own(compiled):
    own = 'syntax = "proto3"; package own; import "schema_7.proto"; message Own { p.Player f = 1; }'
    assert list(compiled(own, ("schema_7.proto", PLAYER))) == ["schema_7.proto", "schema_7_.proto"]


@pytest.mark.parametrize(
    ("imported", "kind"),
    [
        ("google/protobuf/timestamp.proto", "google.protobuf.Timestamp"),
        ("google/type/date.proto", "google.type.Date"),
        ("confluent/type/decimal.proto", "confluent.type.Decimal"),
    ],
)
def test_files_that_no_registry_holds_are_known(compiled, imported, kind):
    files = compiled(f'syntax = "proto3"; import "{imported}"; message M {{ {kind} f = 1; }}')
    assert imported in files
    assert files["schema_7.proto"].message_type[0].field[0].type_name == f".{kind}"


def test_a_known_file_may_import_a_reference_that_the_schema_imports_later(compiled):
    time = 'syntax = "proto3"; package google.protobuf; message Timestamp { int64 seconds = 1; int32 nanos = 2; }'
    names = ("google/type/interval.proto", "google/protobuf/timestamp.proto")
    text = 'syntax = "proto3"; import "{}"; import "{}"; message M {{ google.type.Interval f = 1; }}'
    assert list(compiled(text.format(*names), (names[1], time))) == [*reversed(names), "schema_7.proto"]


def test_a_descriptor_in_base64_is_taken_as_it_is(compiled):
    file = FileDescriptorProto(name="other.proto", syntax="proto3", package="p")
    file.message_type.add(name="Player")
    assert messages(compiled(as_base64(file))["schema_7.proto"]) == ["Player"]


def test_a_descriptor_that_needs_what_the_registry_lacks_is_refused(compiled):
    file = FileDescriptorProto(name="other.proto", syntax="proto3", dependency=["gone.proto"])
    file.message_type.add(name="M").field.add(name="f", number=1, label=1, type=11, type_name=".gone.Type")
    with pytest.raises(DataError, match=r"imports 'gone\.proto', which the registry does not hold"):
        compiled(as_base64(file))


def test_a_descriptor_with_a_type_that_is_nowhere_is_refused(compiled):
    file = FileDescriptorProto(name="other.proto", syntax="proto3")
    file.message_type.add(name="M").field.add(name="f", number=1, label=1, type=11, type_name=".no.Such")
    with pytest.raises(DataError, match=r"schema id 7 does not compile: .*no\.Such"):
        compiled(as_base64(file))


def test_files_that_import_each_other_are_refused(compiled):
    circle = 'syntax = "proto3"; import "player.proto"; message M {}'
    with pytest.raises(DataError, match=r"imports 'player\.proto', which imports it"):
        compiled(EVENT, ("player.proto", circle))


def test_the_compilers_message_names_the_schema_and_no_path_of_this_machine(compiled, tmp_path):
    with pytest.raises(DataError, match=r"schema_7\.proto:1:\d+: \"Nowhere\" is not defined") as refused:
        compiled('syntax = "proto3"; message M { Nowhere f = 1; }')
    assert str(tmp_path) not in str(refused.value)


ENTRY = 'syntax = "proto2"; package p; message M { repeated E f = 1; message E { option map_entry = true; %s } }'
KEY_AND_VALUE = "optional string key = 1; optional int64 value = 2;"


def test_a_map_that_the_registry_has_written_as_a_message_is_a_map_again(compiled):
    (message,) = compiled(ENTRY % KEY_AND_VALUE)["schema_7.proto"].message_type
    assert message.nested_type[0].options.map_entry


@pytest.mark.parametrize("fields", ["optional string key = 1;", KEY_AND_VALUE.replace("value", "other")])
def test_a_message_that_has_not_the_form_of_an_entry_is_refused(compiled, fields):
    with pytest.raises(DataError, match=r"p\.M\.E has the option map_entry and is no entry of a map"):
        compiled(ENTRY % fields)


def answered(tmp_path, text, schema_format="PROTOBUF"):
    request = {"format": schema_format, "text": text, "references": [], "wanted": "compiled", "folder": str(tmp_path)}
    return answer_request(7, request)


def test_a_compiled_schemas_types_are_tried_before_it_is_used(tmp_path):
    schema = answered(tmp_path, PLAYER)
    assert answer_request(7, {"schema": schema, "paths": [[0]]}) == {}
    assert "schema id 7" in answer_request(7, {"schema": schema, "paths": [[1]]})["error"]


def test_a_format_that_is_not_decoded_is_an_error_of_the_schema(tmp_path):
    assert answered(tmp_path, "<xml/>", "XML") == {"error": "schema id 7 is XML, which is not decoded"}


@pytest.mark.parametrize(
    ("schema_format", "text"),
    [
        ("AVRO", '{"type": "record", "name": "R", "fields": [{"name": "f", "type": "long"}]}'),
        ("JSON", '{"type": "object", "title": "R", "properties": {"f": {"type": "integer"}}}'),
    ],
)
def test_schemas_of_other_formats_are_compiled_and_tried_too(tmp_path, schema_format, text):
    schema = answered(tmp_path, text, schema_format)
    assert answer_request(7, {"schema": schema, "paths": [[0]]}) == {}


def test_unprintable_characters_of_an_error_are_replaced(tmp_path):
    error = answered(tmp_path, 'syntax = "proto3"; \x1b[31m message')["error"]
    assert "\x1b" not in error
