"""Descriptors from the forms in which a registry holds them."""

import base64
import pickle
from contextlib import suppress

import pytest
from google.protobuf import descriptor_pb2, json_format

from game_events.decoding.decoder import compile_schema
from game_events.decoding.frame import RegistrySchema
from game_events.errors import DataError
from game_events_tests.support.decoding.helpers import python_class

LEAF = 'syntax = "proto3"; package deep; message Leaf { string s = 1; }'
MIDDLE = 'syntax = "proto3"; package deep; import "deep/leaf.proto"; message Middle { Leaf leaf = 1; }'
TOP = 'syntax = "proto3"; package deep; import "middle.proto"; message Top { Middle middle = 1; }'
MAIN = """syntax = "proto3"; package deep; import "top.proto"; import "google/protobuf/timestamp.proto";
message Event { Top top = 1; google.protobuf.Timestamp at = 2; }"""
REFERENCES = (("deep/leaf.proto", LEAF), ("middle.proto", MIDDLE), ("top.proto", TOP))
VALUE = {"top": {"middle": {"leaf": {"s": "x"}}}, "at": {"seconds": 1}}


def schema(text, references=(), schema_id=5):
    return RegistrySchema(schema_id, "PROTOBUF", text, tuple(references))


def files(text=MAIN, references=REFERENCES):
    """Name -> FileDescriptorProto of a text schema."""
    built = compile_schema(schema(text, references))
    found = descriptor_pb2.FileDescriptorSet.FromString(built.files).file
    return {("main" if file.name == built.main else file.name): file for file in found}


def as_base64(file):
    """What the Confluent serializer registers: the descriptor with a name of its own."""
    return base64.b64encode(file.SerializeToString()).decode()


def round_trip(built):
    return json_format.MessageToDict(python_class(built).FromString(python_class(built)(**VALUE).SerializeToString()))


EXPECTED = {"top": {"middle": {"leaf": {"s": "x"}}}, "at": "1970-01-01T00:00:01Z"}


def test_text_with_references_three_deep():
    built = compile_schema(schema(MAIN, REFERENCES))
    assert built.message((0,)).full_name == "deep.Event"
    assert round_trip(built) == EXPECTED


@pytest.mark.parametrize("order", [REFERENCES, REFERENCES[::-1], (REFERENCES[1], REFERENCES[0], REFERENCES[2])])
@pytest.mark.parametrize("binary", [set(), {0}, {0, 1}, {0, 1, 2}, {1, 2}, {2}])
@pytest.mark.parametrize("main", ["text", "base64"])
def test_text_and_base64_in_any_mixture_and_order(order, binary, main):
    known = files()
    encoded = {REFERENCES[i][0] for i in binary}
    references = [(name, as_base64(known[name]) if name in encoded else text) for name, text in order]
    built = compile_schema(schema(MAIN if main == "text" else as_base64(known["main"]), references))
    assert round_trip(built) == EXPECTED


def test_a_base64_schema_without_references_may_import_what_is_well_known():
    text = 'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message Event { google.protobuf.Timestamp at = 1; }'
    built = compile_schema(schema(as_base64(files(text, ())["main"])))
    assert python_class(built)(at={"seconds": 1}).at.seconds == 1


@pytest.mark.parametrize("name", ["any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers"])
def test_well_known_imports_need_no_reference(name):
    assert (
        compile_schema(schema(f'syntax = "proto3"; import "google/protobuf/{name}.proto"; message E {{}}')).message((0,)).name
        == "E"
    )


def test_google_types_need_no_reference():
    text = 'syntax = "proto3"; import "google/type/date.proto"; message E { google.type.Date d = 1; }'
    assert compile_schema(schema(text)).message((0,)).name == "E"


def test_a_proto2_schema_compiles():
    assert compile_schema(schema('syntax = "proto2"; message E { required string a = 1; }')).message((0,)).name == "E"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('syntax = "proto3"; message E { strin a = 1; }', '"strin" is not defined'),
        ('syntax = "proto3"; message E { string a = 1; string b = 1; }', "Field number 1 has already been used"),
        ('syntax = "proto3"; import "missing.proto"; message E { M m = 1; }', "missing.proto: File not found"),
        ("this is no schema", "Expected"),
    ],
)
def test_what_does_not_compile_carries_the_compilers_words(text, words, capfd):
    with pytest.raises(DataError, match="schema id 5 does not compile") as caught:
        compile_schema(schema(text))
    assert words in str(caught.value)
    assert "game_events_protoc" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_a_missing_reference_of_a_base64_schema_is_an_error_of_ours():
    known = files()
    with pytest.raises(DataError, match=r"top\.proto imports .middle\.proto., which the registry does not hold"):
        compile_schema(schema(MAIN, [("top.proto", as_base64(known["top.proto"]))]))


@pytest.mark.parametrize("text", ["", "{}", "////", base64.b64encode(b"\xff\xff").decode(), "x" * 1000])
def test_nonsense_compiles_to_nothing_or_to_an_error_of_ours(text):
    with suppress(DataError):
        assert compile_schema(schema(text)).message((0,)) is None


def test_a_reference_may_be_called_as_the_main_file_of_another_id():
    references = [("schema_6.proto", LEAF)]
    text = 'syntax = "proto3"; package deep; import "schema_6.proto"; message Event { Leaf leaf = 1; }'
    assert compile_schema(schema(text, references)).message((0,)).full_name == "deep.Event"


def test_text_that_is_not_ascii_compiles():
    assert compile_schema(schema('syntax = "proto3"; /* größe 🎲 */ message E { string a = 1; }')).message((0,)).name == "E"


@pytest.mark.parametrize("path", [(1,), (0, 0), (0, 1), (-1,), (2**40,)])
def test_a_path_to_no_message_finds_none(path):
    assert compile_schema(schema('syntax = "proto3"; message E {}')).message(path) is None


def test_nested_messages_are_found_by_their_path_in_any_package():
    text = 'syntax = "proto3"; {} message A {{}} message B {{ message C {{}} message D {{ message E {{}} }} }}'
    for package, prefix in (("", ""), ("package p.q;", "p.q.")):
        built = compile_schema(schema(text.format(package)))
        assert [built.message(p).full_name for p in ((0,), (1,), (1, 1), (1, 1, 0))] == [
            prefix + name for name in ("A", "B", "B.D", "B.D.E")
        ]


def test_it_pickles_with_and_without_its_pool():
    built = compile_schema(schema(MAIN, REFERENCES))
    for _ in range(2):
        there = pickle.loads(pickle.dumps(built))  # noqa: S301 - our own bytes
        assert there == built
        assert round_trip(there) == EXPECTED


def test_compiling_leaves_no_file_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    compile_schema(schema(MAIN, REFERENCES))
    assert list(tmp_path.iterdir()) == []
