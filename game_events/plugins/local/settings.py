"""The setting `producer`: description of sample data for the commands `produce` and `demo`."""

import os
from pathlib import Path
from random import Random
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from game_events.config.pipeline_settings import ENV_PREFIX, SettingsGroup

#: Settings under which a demo keeps to its own parts.
OWN_PARTS = {
    **{"SOURCE": "kafka", "SOURCE_TABLE": "", "STARTING_OFFSETS": "earliest", "STARTING_TIMESTAMP": ""},
    "KAFKA_OPTIONS": "{}",  # the demo's broker has no passwords
    # What they keep out or change would be missing in gold.
    **{"GAMES": "", "RULES": "[]", "EXTENSIONS": ""},
    # Sample data stay on this machine.
    **dict.fromkeys(("ALERT_WEBHOOK_URL", "CATALOG", "OPENLINEAGE_URL", "REST_URL"), ""),
}
DEFAULT_GAMES = ("rummy", "spades", "euchre", "go_fish", "uno", "hearts", "poker")


class Generator(BaseModel):
    """Generator of one field's values.

    Attributes:
        kind: `choice` of `values`; `numbered`: `{prefix}0` to `{prefix}{count - 1}`; `integer`, `number` from `low` to `high`,
            numbers with so many decimal `digits`; `boolean`; `text`: a random one.
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
    def _possible(self) -> Self:
        if self.kind == "choice" and not self.values:
            raise ValueError("a choice needs `values`")
        if self.low > self.high:
            raise ValueError("`low` is above `high`")
        return self

    @property
    def numeric(self) -> bool:
        """Whether its values are numbers, which have sums in the manifest."""
        return self.kind in ("integer", "number")

    def make(self, draw: Random) -> object:
        """The next value: deterministic for the state of `draw`."""
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
                return f"{self.prefix}{draw.getrandbits(48):012x}"

    def extremes(self) -> tuple[object, ...]:
        """Values that a field must hold to hold all of them."""
        match self.kind:
            case "choice":
                return self.values
            case "integer":
                return int(self.low), int(self.high)
            case "number":
                return float(self.low), float(self.high)
            case "boolean":
                return (True,)
        return ("",)


#: (field, generator), in the order in which values are drawn.
Fields = tuple[tuple[str, Generator], ...]

#: For the built-in game event.
GAME_FIELDS: Fields = (("device_id", Generator(kind="numbered", prefix="device_", count=10)),)


class SampleData(BaseModel):
    """The setting `producer`.

    Attributes:
        proto: a `.proto` file (its last message), relative to the settings file; None: the built-in game event.
        entities: entities with events, unless `produce` names others.
        new_entity: entity that is added in the demo's second wave.
        keys_per_entity: different keys of each.
        fields: field -> generator; other fields of simple types get values of their types.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    proto: Path | None = None
    entities: Annotated[tuple[str, ...], Field(min_length=1)] = DEFAULT_GAMES
    new_entity: str = Field("chess", min_length=1)
    keys_per_entity: int = Field(20, ge=1)
    fields: dict[str, Generator] = Field(default_factory=dict)


class SampleDataSettings(SettingsGroup):
    """Sample data."""

    group: ClassVar[str] = "domain"

    # --- sample data (docs/domains.md)
    producer: SampleData = Field(default_factory=SampleData)
    """the message and sample data of `produce` and `demo`; default: the game event"""

    @field_validator("producer")
    @classmethod
    def _proto(cls, value: SampleData) -> SampleData:
        if value.proto is None:
            return value
        # It need not exist: only `produce` and `demo` read it.
        folder = Path(os.environ.get(ENV_PREFIX + "CONFIG") or "game_events.yaml").parent
        return value.model_copy(update={"proto": (folder / value.proto).resolve()})
