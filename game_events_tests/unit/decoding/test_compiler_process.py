"""What happens to the process in which schemas are compiled: what is no schema's fault is tried again, and no schema blamed."""

import errno
import os
import signal

import pytest

from game_events.decoding.compiler_child import CompilerLimits
from game_events.decoding.compiler_process import answer_request
from game_events.decoding.decoder import compile_schema, first_decoders
from game_events.decoding.frame import RegistrySchema
from game_events.decoding.protobuf import files as protobuf_files
from game_events.decoding.protobuf.schema import ProtobufSchema
from game_events.errors import DataError, TransientError
from game_events_tests.support.decoding.hostile_schemas import MAIN

GOOD = RegistrySchema(1, "PROTOBUF", MAIN)


def ended_after_start(own_child, *signals):
    """Ends the children that are started from now on, one by each signal, before they get a request."""
    left = list(signals)

    def end():
        if left:
            os.kill(own_child._process.pid, left.pop(0))
            own_child._process.wait()

    own_child.started = end


def test_a_new_child_that_is_told_to_stop_is_no_schemas_fault(own_child):
    # Other signals that stop processes may be ignored here (`nohup`).
    ended_after_start(own_child, signal.SIGTERM)
    with pytest.raises(TransientError, match="schema id 1"):
        compile_schema(GOOD)
    assert compile_schema(GOOD).has((0,))


def test_a_new_child_that_is_killed_once_is_no_schemas_fault(own_child):
    ended_after_start(own_child, signal.SIGKILL)
    assert compile_schema(GOOD).has((0,))


def test_a_new_child_that_ended_as_nothing_came_is_no_schemas_fault(own_child):
    own_child.limits = CompilerLimits(idle_s=0.05)
    ended_after_start(own_child, 0)  # waits until it has ended by itself
    assert compile_schema(GOOD).has((0,))


def test_two_new_children_that_are_killed_are_the_schemas_fault(own_child):
    ended_after_start(own_child, signal.SIGKILL, signal.SIGKILL)
    with pytest.raises(DataError, match="takes more memory than there is"):
        compile_schema(GOOD)


def test_a_schema_that_is_not_done_after_the_wall_limit_is_tried_once(own_child):
    starts = []

    def stop():
        starts.append(own_child._process.pid)
        os.kill(own_child._process.pid, signal.SIGSTOP)
        own_child.limits = CompilerLimits(wait_s=0.2)  # after its start, which takes longer

    own_child.started = stop
    with pytest.raises(DataError, match=r"it is not done after 0\.2 s"):
        compile_schema(GOOD)
    assert len(starts) == 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO])
def test_what_the_machine_lacks_is_no_schemas_fault(code, tmp_path):
    def fails(*_):
        raise OSError(code, os.strerror(code), "known.bin")

    request = {"schema_id": 1, "format": "AVRO", "text": "{}", "references": [], "folder": str(tmp_path), "wanted": "compiled"}
    answer = answer_request(request["schema_id"], request, fails)
    assert os.strerror(code) in answer["unable"]
    assert "error" not in answer


def test_a_file_that_is_too_large_is_the_schemas_fault(tmp_path):
    def fails(*_):
        raise OSError(errno.EFBIG, "File too large")

    request = {"schema_id": 1, "format": "AVRO", "text": "{}", "references": [], "folder": str(tmp_path), "wanted": "compiled"}
    assert "File too large" in answer_request(request["schema_id"], request, fails)["error"]


def test_a_schema_whose_child_lacks_something_is_compiled_when_it_lacks_it_no_more(own_child):
    compile_schema(GOOD)
    usual = own_child.answered
    own_child.answered = lambda *_: {"schema_id": 1, "unable": "OSError: [Errno 28] No space left"}
    with pytest.raises(TransientError, match="No space left"):
        compile_schema(GOOD)
    own_child.answered = usual
    assert compile_schema(GOOD).has((0,))


def test_a_folder_that_cannot_be_made_is_no_schemas_fault(own_child, monkeypatch, tmp_path):
    compile_schema(GOOD)
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(tmp_path / "full"))
        with pytest.raises(TransientError, match="temporary"):
            compile_schema(GOOD)
        own_child.end()
        with pytest.raises(TransientError, match="cannot be started"):
            first_decoders(ProtobufSchema(1, "x.proto", b""), [(0,)])
    assert compile_schema(GOOD).has((0,))


@pytest.mark.parametrize("full", [("compiled.bin", "room"), ("compiled.bin",)])
def test_protoc_that_cannot_write_is_no_schemas_fault_where_there_is_no_room(tmp_path, full):
    for name in full:
        (tmp_path / name).symlink_to("/dev/full")
    with pytest.raises(OSError if "room" in full else DataError, match="No space left on device"):
        protobuf_files.compile_files(GOOD, tmp_path)


def test_an_answer_to_another_request_is_never_taken(own_child):
    compile_schema(GOOD)
    usual = own_child.answered
    own_child.answered = lambda _, answer: answer | {"schema_id": 2}
    with pytest.raises(TransientError, match="schema id 1"):
        compile_schema(GOOD)
    own_child.answered = usual
    assert own_child._process is None
    assert compile_schema(GOOD).schema_id == 1
