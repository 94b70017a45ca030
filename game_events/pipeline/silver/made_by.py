"""What silver's tables were made by: the entity column, the definitions of game, player and time, and which types have tables.

Other settings put rows into other tables. Older rows would be missing there, and stay where nobody updates them: such settings
are refused, until a full refresh of all tables makes them by the new ones. For other definitions bronze is redecoded before
(`definitions.refuse_others`), by a command that does both.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from game_events.config.settings import Settings
from game_events.config.type_names import SEPARATOR
from game_events.errors import ConfigurationError, first_few
from game_events.lakehouse.system_tables import CountedRows, LeftOut, Mark, Progress
from game_events.lakehouse.tables import BRONZE, Layer
from game_events.pipeline.context import Pipeline
from game_events.pipeline.definitions import made_by

#: Between the entity column with the definitions and the types with tables, in what tables were made by.
BY_TYPES = " by "

#: Games that a message names.
SHOWN = 5


def refuse_other_settings(pipeline: Pipeline, state: Progress, bronze_key: str, *, may_change: bool) -> None:
    """Raise ConfigurationError if silver's tables were made by other settings, unless a full refresh of all may change them.

    The refresh notes it before any commit: until its end, tables are of either.
    """
    why = other_settings(pipeline.settings, state)
    if why is None:
        return
    if not may_change:
        raise ConfigurationError(why)
    odd = sorted(game for game in state.games if SEPARATOR in game) if pipeline.settings.type_tables is not None else []
    if odd:
        raise ConfigurationError(
            f"GAME_EVENTS_SILVER_PER=entity_and_type: {first_few(odd, SHOWN, ', ')} has two underscores in a row, which stand "
            "between game and type in the names of tables: nothing was changed. Set it back to entity"
        )
    now = _by_settings(pipeline.settings)
    pipeline.progress.update(bronze_key, lambda latest: _with(latest, {*_made_by(latest), now}))


def other_settings(settings: Settings, state: Progress) -> str | None:
    """Why silver cannot be added to, as its tables were made by other settings; None: they were not."""
    held = _made_by(state)
    if held <= {_by_settings(settings)}:
        return None
    again = "nothing was added. Make all of them again with `game-events run --full-refresh silver`"
    back = ", or set it back" if len(held) == 1 else ""
    column = settings.entity_column
    definitions = {made.partition(BY_TYPES)[0] for made in held}
    columns = sorted({definition.partition("=")[0] for definition in definitions})
    if columns != [column]:
        by = " and ".join(map(repr, columns))
        return f"GAME_EVENTS_ENTITY_COLUMN is {column!r}, and silver's tables were made by {by}: {again}{back}"
    if definitions != {made_by(settings)}:
        bronze = settings.names.name_of(BRONZE)
        return f"silver's tables were made before {bronze} got other games, players or times: {again}{back}"
    kinds = " and ".join(sorted(_kind(made.partition(BY_TYPES)[2]) for made in held))
    wanted = _kind(settings.type_tables.definition if settings.type_tables is not None else "")
    return f"GAME_EVENTS_SILVER_PER and SILVER_TYPES ask for {wanted}, and silver has {kinds}: {again}{back}"


def _kind(types: str) -> str:
    return f"tables for games and {types}" if types else "tables for games alone"


def retires_types(pipeline: Pipeline, state: Progress, *, full: bool) -> bool:
    """Whether a run empties tables of message types, as its settings have none and those before had some."""
    return full and pipeline.settings.type_tables is None and any(BY_TYPES in made for made in _made_by(state))


def _by_settings(settings: Settings) -> str:
    """What decides in which table a row is; without a slash."""
    by = made_by(settings)
    return by if settings.type_tables is None else f"{by}{BY_TYPES}{settings.type_tables.definition}"


def _made_by(state: Progress) -> set[str]:
    """Of each of the tables; none: not known."""
    return set(filter(None, state.marks.get(Layer.SILVER, Mark()).definition.split("/")))


def _with(state: Progress, made_by: Collection[str]) -> Progress:
    return replace(state, marks=state.marks | {Layer.SILVER: Mark("/".join(sorted(made_by)))})


@dataclass(frozen=True)
class EndOfRun:
    """What a run over every game knows at its end.

    `batch`: last one of its bronze. `failed`: games that may still have rows by other settings, if they have a table.
    """

    pipeline: Pipeline
    batch: int
    full: bool
    failed: frozenset[str]

    def noted(self, state: Progress, *, moved: bool) -> Progress:
        """The progress with what the tables are made by now; `moved`: the low watermark moves."""
        known = _made_by(state)
        now = _by_settings(self.pipeline.settings)
        if known <= {now}:
            return _with(state, {now}) if moved or known else state
        tables = self.pipeline.lakehouse.silver
        # Batches that a run with other settings has added meanwhile are missing, too.
        late = state.floor(Layer.SILVER) > self.batch
        if not self.full or late or any(tables(game).exists() for game in self.failed):
            return _with(state, {*known, now})
        # Names that there was no room for have rows below the low watermark, too.
        return _with(replace(state, left_out=LeftOut(1, self.batch), counted=CountedRows()), {now})
