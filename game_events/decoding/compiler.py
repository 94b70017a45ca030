"""Compiles schemas, and tries their decoders, in a child process, so that a bad schema affects only its own records.

A schema is untrusted text: if it is invalid, crashes the compiler, takes too long or too much memory, it raises a DataError. A
schema that the child has handled within its limits is then used in this process and in Spark's workers, which never compile.
"""

import tempfile
from collections.abc import Sequence
from typing import Any

from game_events.decoding import compiler_child
from game_events.decoding.core.protocols import CompiledSchema, PayloadDecoder
from game_events.decoding.core.registry_schema import RegistrySchema
from game_events.decoding.core.wire_format import IndexPath
from game_events.decoding.formats import allow_deep_calls, as_json, from_json, make_decoder
from game_events.errors import DataError, TransientError

#: CPU seconds for each reference, and for each message type after the first: up to `STEPS` of them.
STEP_S, STEPS = 0.01, 1_000
#: Of names of temporary folders.
PREFIX = "game_events_compiler"


def compile_schema(schema: RegistrySchema) -> CompiledSchema:
    """Compile a registry's schema.

    Raises:
        DataError: the text does not compile within the limits, or its format is not supported; the message holds the
            compiler's.
        TransientError: the child cannot be started, was stopped, or the machine lacks resources (room for files).
    """
    allow_deep_calls()
    return from_json(ask_about(schema, "compiled"))


def ask_about(schema: RegistrySchema, wanted: str) -> dict[str, Any]:
    """What the child makes of a schema (`answer_request`); raises as `compile_schema`."""
    too_long = schema.too_long()
    if too_long is not None:
        raise DataError(f"schema id {schema.schema_id} does not compile: {too_long}")
    request = {"wanted": wanted, "format": schema.format, "text": schema.text, "references": schema.references}
    work_s = compiler_child.CHILD.limits.work_s + STEP_S * min(len(schema.references), STEPS)
    try:
        with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
            return compiler_child.CHILD.ask(schema.schema_id, request | {"folder": folder, "work_s": work_s})
    except OSError as error:
        raise TransientError(f"schema id {schema.schema_id}: no temporary folder can be made: {error}") from error


def first_decoders(schema: CompiledSchema, paths: Sequence[IndexPath]) -> list[PayloadDecoder]:
    """The decoders of new message types, tried in the child first (workers use `make_decoder`), `STEPS` in one request.

    Raises:
        DataError: there is no such type, or it cannot be decoded within the limits.
        TransientError: as `compile_schema`.
    """
    for begin in range(0, len(paths), STEPS):
        some = paths[begin : begin + STEPS]
        work_s = compiler_child.CHILD.limits.work_s + STEP_S * (len(some) - 1)
        compiler_child.CHILD.ask(schema.schema_id, {"schema": as_json(schema), "paths": some, "work_s": work_s})
    allow_deep_calls()
    try:
        return [make_decoder(schema, path) for path in paths]
    except (ValueError, TypeError, RecursionError, ArithmeticError, LookupError) as error:
        raise DataError(f"schema id {schema.schema_id} cannot be decoded: {type(error).__name__}: {error}") from None
