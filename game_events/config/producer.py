"""What the producer makes up: the setting `producer`, a small description of a domain's sample data.

Only the commands `produce` and `demo` read it; no run does.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

DEFAULT_GAMES = ("rummy", "spades", "euchre", "go_fish", "uno", "hearts", "poker")
#: Bits of a made-up text: as good as never twice.
_TEXT_BITS = 48


class Generator(BaseModel):
    """How one field's values come about.

    Attributes:
        kind: `choice` of `values`; `numbered`: `{prefix}0` up to `count` of them; `integer` and `number` from `low` to `high`,
            a number with so many `digits` behind the point; `boolean`; `text`: never the same one twice.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["choice", "numbered", "integer", "number", "boolean", "text"]
    values: tuple[str | int | float, ...] = ()
    prefix: str = ""
    count: int = Field(10, ge=1)
    low: float = 0
    high: float = 100
    digits: int = Field(2, ge=0, le=6)

    @model_validator(mode="after")
    def _possible(self) -> Generator:
        if self.kind == "choice" and not self.values:
            raise ValueError("a choice needs `values`")
        if self.low > self.high:
            raise ValueError("`low` is above `high`")
        return self

    @property
    def numeric(self) -> bool:
        """Whether its values can be added up: then the manifest says what their sums are."""
        return self.kind in ("integer", "number")

    def make(self, draw: Random) -> object:
        """The next value; one or more draws, the same for the same state."""
        match self.kind:
            case "numbered":
                return f"{self.prefix}{draw.randrange(self.count)}"
            case "choice":
                return draw.choice(self.values)
            case "integer":
                return draw.randint(int(self.low), int(self.high))
            case "number":
                return round(draw.uniform(self.low, self.high), self.digits)
            case "boolean":
                return draw.random() < 0.5
            case "text":
                return f"{self.prefix}{draw.getrandbits(_TEXT_BITS):012x}"


#: (field, how its values come about), in the order in which they are drawn.
Fields = tuple[tuple[str, Generator], ...]
#: Of the shipped message.
GAME_FIELDS: Fields = (("device_id", Generator(kind="numbered", prefix="device_", count=10)),)


class SampleData(BaseModel):
    """The setting `producer`.

    Attributes:
        proto: a `.proto` file whose last part is the message; from the settings file's folder. None: the shipped game event.
        entities: who sends, unless `produce` names others.
        new_entity: who joins in the demo's second wave.
        keys_per_entity: different keys of each.
        fields: field -> generator; fields of simple types that are not named get values that fit their types.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    proto: Path | None = None
    entities: Annotated[tuple[str, ...], Field(min_length=1)] = DEFAULT_GAMES
    new_entity: str = Field("chess", min_length=1)
    keys_per_entity: int = Field(20, ge=1)
    fields: dict[str, Generator] = Field(default_factory=dict)
