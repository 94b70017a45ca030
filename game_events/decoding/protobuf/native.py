"""The native decoder (ptars, Rust) of a message type, on a surrogate schema; panics become errors.

The surrogate schema has the same wire format without constructs that the native decoder refuses or misreads: only names
``f<number>``, one proto3 file, no recursion, no google types, no enums. 32-bit integers are read as 64-bit ones, to detect
truncation, and strings as bytes, so that bad UTF-8 does not fail a batch; `verification` converts the result.
"""

import numpy as np
import ptars
import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from game_events.decoding.core.wire_format import Rows
from game_events.decoding.protobuf.fields import MESSAGES, Label, Node, Role
from game_events.errors import DataError

_CONFIG = ptars.PtarsConfig(
    list_nullable=True,
    map_nullable=True,
    # Without it, a map entry without a value (which is valid) causes a panic.
    map_value_nullable=True,
)
_BYTES = FieldDescriptorProto.TYPE_BYTES
_WIDER = {
    FieldDescriptor.TYPE_INT32: FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_UINT32: FieldDescriptor.TYPE_UINT64,
    FieldDescriptor.TYPE_SINT32: FieldDescriptor.TYPE_SINT64,
    FieldDescriptor.TYPE_ENUM: FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_STRING: _BYTES,
}


#: Failed attempts after which bisection ends (two or three bad rows of 100,000): with more, checking each row is cheaper.
MAX_FAILURES = 48

#: Rows by their positions, and the same rows decoded.
Part = tuple[Rows, pa.RecordBatch]


class NativeDecoder:
    """Decodes batches of one message type into columns ``f<number>`` of the surrogate schema."""

    def __init__(self, nodes: list[Node]) -> None:
        """Raises DataError if the native library does not support the type."""
        file = FileDescriptorProto(name="native.proto", package="native", syntax="proto3")
        _fill(file.message_type.add(name="M"), ".native.M", nodes)
        try:
            pool = DescriptorPool()
            pool.Add(file)
            message = pool.FindMessageTypeByName("native.M")
            self._handler = ptars.HandlerPool([message.file], config=_CONFIG).get_for_message(message)
        except BaseException as error:  # noqa: BLE001 - a native panic; `_contained` raises others
            raise _contained(error, "the native decoder does not take the type") from None

    def decode(
        self, payloads: pa.BinaryArray, rows: Rows, max_failures: int | None = MAX_FAILURES
    ) -> tuple[list[Part], Rows, list[tuple[int, DataError]]]:
        """Decode rows, bisecting failed parts until bad rows are isolated, or `max_failures` attempts have failed.

        Returns decoded parts, the remaining positions, and each bad position with its error.
        """
        done: list[Part] = []
        bad: list[tuple[int, DataError]] = []
        stack = [rows] if len(rows) else []
        failures = 0
        while stack and (max_failures is None or failures < max_failures):
            part = stack.pop()
            taken = payloads if len(part) == len(payloads) else payloads.take(pa.array(part))
            try:
                done.append((part, self._handler.array_to_record_batch(taken)))
            except BaseException as error:  # noqa: BLE001 - a native panic; `_contained` raises others
                failure = _contained(error, "not a message of its schema")
                failures += 1
                if len(part) > 1:
                    half = len(part) // 2
                    stack += [part[half:], part[:half]]
                else:
                    bad.append((int(part[0]), failure))
        return done, np.concatenate([*stack, np.empty(0, dtype=np.int64)]), bad


def _contained(error: BaseException, what: str) -> DataError:
    """DataError for a native failure; raises requests to end the process."""
    if isinstance(error, Exception) or type(error).__name__ == "PanicException":
        return DataError(f"{what}: {error}")
    raise error


def _fill(message: DescriptorProto, path: str, nodes: list[Node]) -> None:
    for node in nodes:
        name = f"f{node.native}"
        label = FieldDescriptorProto.LABEL_OPTIONAL if node.label is Label.ONE else FieldDescriptorProto.LABEL_REPEATED
        item = message.field.add(name=name, number=node.native, label=label)
        if node.key is not None:
            entry = message.nested_type.add(name=f"F{node.native}Entry")
            entry.options.map_entry = True
            key = entry.field.add(name="key", number=1, label=FieldDescriptorProto.LABEL_OPTIONAL)
            # Protobuf allows no bytes here: bad UTF-8 in a map key fails the batch.
            is_text = node.key.descriptor.type == FieldDescriptor.TYPE_STRING
            key.type = FieldDescriptorProto.TYPE_STRING if is_text else _scalar(node.key)
            value = entry.field.add(name="value", number=2, label=FieldDescriptorProto.LABEL_OPTIONAL)
            _typed(value, node, message, path)
            item.type, item.type_name = FieldDescriptorProto.TYPE_MESSAGE, f"{path}.{entry.name}"
            continue
        _typed(item, node, message, path)
        if node.label is Label.ONE and node.descriptor.has_presence and item.type != FieldDescriptor.TYPE_MESSAGE:
            item.proto3_optional = True
            item.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{name}")


def _typed(item: FieldDescriptorProto, node: Node, into: DescriptorProto, path: str) -> None:
    if node.role in MESSAGES:
        name = f"M{node.native}"
        item.type, item.type_name = FieldDescriptorProto.TYPE_MESSAGE, f"{path}.{name}"
        _fill(into.nested_type.add(name=name), f"{path}.{name}", node.children)
    elif node.role is Role.SCALAR:
        item.type = _scalar(node)
    else:
        item.type = _BYTES


def _scalar(node: Node) -> FieldDescriptorProto.Type.ValueType:
    return FieldDescriptorProto.Type.ValueType(_WIDER.get(node.descriptor.type, node.descriptor.type))
