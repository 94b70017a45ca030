"""One entry of the setting `decoding`: how records of a topic without a registry's frame are decoded."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from game_events.config.sources.schema_names import HEADER, KEY, SUBJECT

#: Variable of the environment that names the settings file.
CONFIG = "GAME_EVENTS_CONFIG"
#: SQL types of hints.
HintType = Literal["bigint", "double", "string", "boolean", "timestamp", "date"]
#: Whether records have frames. YAML's `auto`, `glue` or false; texts of the environment, too.
Framed = Annotated[Literal[False, "auto", "glue"], BeforeValidator(lambda value: False if value == "false" else value)]


class TopicDecoding(BaseModel):
    """How the records of a topic, or of all topics that match a pattern, are decoded.

    Attributes:
        format: of the payloads.
        schema_: `schema` in settings: a file, `subject:NAME`, `subject:NAME@VERSION`, `header:NAME` or `key`; None: columns are
            inferred (JSON).
        message_type: full name of the protobuf message; None: the schema's first.
        framed: False: no record has a frame; `auto`: those that have one are decoded by it; `glue`: AWS Glue's, which is
            stripped.
        hints: path of a member, with dots -> SQL type of its column (without a schema).
        type_field: member at the top that names the record's type (without a schema).
        cloudevents: records are CloudEvents, in structured or in binary mode.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, populate_by_name=True)

    format: Literal["protobuf", "avro", "json"]
    schema_: str | None = Field(None, alias="schema", min_length=1)
    message_type: str | None = Field(None, min_length=1)
    framed: Framed = False
    hints: dict[str, HintType] = Field(default_factory=dict)
    type_field: str | None = Field(None, min_length=1)
    cloudevents: bool = False

    @property
    def file(self) -> Path | None:
        """The file that has the schema; None: it is no file."""
        named = self.schema_
        if named is None or named == KEY or named.startswith((SUBJECT, HEADER)):
            return None
        path = Path(named).expanduser()
        # As files that a settings file names are meant: from the working folder, else beside it.
        beside = Path(os.environ.get(CONFIG) or "game_events.yaml").parent / path
        return beside if not path.exists() and beside.exists() else path

    @property
    def inference(self) -> tuple[Mapping[str, str], str | None]:
        """What says how columns are inferred."""
        return self.hints, self.type_field

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.schema_ is None and self.format != "json":
            raise ValueError(f"{self.format} needs a `schema`: a file, subject:NAME, header:NAME or key")
        if self.message_type is not None and self.format != "protobuf":
            raise ValueError("`message_type` is for protobuf only: other schemas have one type")
        if self.schema_ is not None and (self.hints or self.type_field):
            raise ValueError("`hints` and `type_field` are for json without a `schema`")
        if self.schema_ is not None and re.fullmatch(rf"({SUBJECT}|{HEADER})\s*(@.*)?", self.schema_):
            raise ValueError(f"`schema`: {self.schema_} names nothing: put a name behind the colon")
        if self.schema_ is not None and re.fullmatch(rf"{SUBJECT}[^@]*@(?!\d{{1,9}}$).*", self.schema_):
            raise ValueError(f"`schema`: {self.schema_}: a version is a number: subject:NAME@3")
        if self.file is not None:
            _read(self.file)
        return self


def _read(file: Path) -> None:
    """Raise ValueError if a file of a schema cannot be read."""
    try:
        file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"`schema`: the file {file} cannot be read ({type(error).__name__}): name a file in UTF-8, or subject:NAME, "
            "subject:NAME@VERSION, header:NAME or key"
        ) from None


def require_patterns(entries: dict[str, Any], names: str) -> dict[str, Any]:
    """The entries, by topic or pattern; ValueError for what is no regular expression. `names`: pattern of topics' names."""
    for topic in entries:
        if re.fullmatch(names, topic) is not None:
            continue
        try:
            re.compile(topic)
        except re.error as error:
            raise ValueError(f"{topic!r} is neither a topic's name nor a regular expression: {error}") from None
    return entries
