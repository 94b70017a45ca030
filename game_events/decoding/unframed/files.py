"""Schemas in files that the settings name: text and imports, with a GUID made of them."""

from pathlib import Path

from game_events.decoding.frame import RegistrySchema, schema_guid
from game_events.decoding.protobuf.schema import imports


def schema_of_file(path: Path, kind: str) -> RegistrySchema:
    """The schema in a file, of a format as registries name it; raises OSError or UnicodeDecodeError if it cannot be read."""
    text = path.read_text("utf-8")
    references = _imports(path, text) if kind == "PROTOBUF" else ()
    return RegistrySchema(schema_guid(kind, text, references), kind, text, references)


def _imports(path: Path, text: str) -> tuple[tuple[str, str], ...]:
    """(Name, text) of imported .proto files in the same folder, dependencies first; other imports are protoc's own."""
    texts: dict[str, str] = {}
    seen: set[str] = set()  # circular imports are refused by the compiler

    def visit(body: str) -> None:
        for name in imports(body):
            beside = path.parent / name
            if name not in seen and beside.is_file() and not {"..", "/"} & set(Path(name).parts):
                seen.add(name)
                inner = beside.read_text("utf-8")
                visit(inner)
                texts[name] = inner

    visit(text)
    return tuple(texts.items())
