"""By which definitions of game, player and time bronze was made, and what runs say about those of the settings.

Bronze's transactions (`Txn.DEFINITION`) say it, and each commit of rows sets them. Under other definitions nothing is added to
rows that there are: a redecode gives all of them the new values, without Kafka, and silver and gold are made again after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
from deltalake import DeltaTable

from game_events.config.definitions.settings import marks_of, number_of
from game_events.config.pipeline_settings import ENV_PREFIX
from game_events.config.settings import Settings
from game_events.decoding.columns import ColumnMap, column_of, computed_types, kept_columns, kind_of
from game_events.errors import ConfigurationError, first_few, folded, some_columns
from game_events.lakehouse.commits.transactions import Txn, counter, txns
from game_events.lakehouse.data.columns import column_map
from game_events.lakehouse.data.reading import row_count
from game_events.pipeline.context import Pipeline
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import BronzeResult
from game_events.workers.results import StagedRows

#: What gives all rows the values of new definitions.
REDECODE = "game-events redecode --downstream"
#: Message types, or names of columns, in a message.
SHOWN = 5


def as_planned(bronze: DeltaTable) -> dict[str, int | None]:
    """The transaction that a commit compares: rows by other definitions may be there since it was planned."""
    return txns(bronze, (Txn.DEFINITION,))


def marks_to_set(pipeline: Pipeline, bronze: DeltaTable) -> dict[str, int]:
    """The transactions of a commit whose rows are made by the settings' definitions; none where there never was one."""
    wanted = number_of(pipeline.settings)
    if not (wanted or counter(bronze, Txn.DEFINITION)):
        return {}
    return {Txn.DEFINITION: wanted} | {Txn.DEFINITION.of(name): mark for name, mark in marks_of(pipeline.settings).items()}


def is_first(pipeline: Pipeline, bronze: DeltaTable) -> bool:
    """Whether no row was made by the settings' definitions yet."""
    return not counter(bronze, Txn.BATCH) or counter(bronze, Txn.DEFINITION) != number_of(pipeline.settings)


def refuse_others(pipeline: Pipeline, bronze: DeltaTable) -> None:
    """Refuse rows by other definitions than those of the rows that bronze has.

    Raises:
        ConfigurationError: says which definitions differ, and which command makes all rows anew; as `refuse_other_types`.
    """
    refuse_other_types(pipeline, bronze)
    if counter(bronze, Txn.DEFINITION) == number_of(pipeline.settings) or not row_count(bronze):
        return
    wanted = marks_of(pipeline.settings)
    names = [_named(name) for name, mark in wanted.items() if counter(bronze, Txn.DEFINITION.of(name)) != mark]
    raise ConfigurationError(
        f"the rows of {pipeline.bronze.name} were made by another definition of {' and of '.join(names)}: nothing was added. "
        f"`{REDECODE}` makes all of them again, without Kafka, then silver and gold; or set it back"
    )


def _named(setting: str) -> str:
    more = f" ({ENV_PREFIX}ENTITY_ALIASES, {ENV_PREFIX}ENTITY_NAMES)" if setting == "entity" else ""
    return f"{ENV_PREFIX}{setting.upper()}{more}"


def refuse_other_types(pipeline: Pipeline, bronze: DeltaTable) -> None:
    """Refuse to compute values for a column that holds something else.

    Raises:
        ConfigurationError: names the column, and what to do.
    """
    definitions = pipeline.definitions
    if definitions is None:
        return
    wanted = computed_types(definitions)
    kept = kept_columns(pipeline.settings)
    settings = {item.column: item.setting.upper() for item in definitions.computed}
    held = {folded(f.name): f for f in pa.schema(bronze.schema())}
    for column, kind in wanted.items():
        there = held.get(folded(column))
        problem = ""
        if kept[folded(column)].kind != kind_of(kind):
            problem = f"its name says that it is a {kept[folded(column)].kind}"
        elif there is not None and there.type != kind:
            problem = f"{pipeline.bronze.name} has it as a {kind_of(there.type)}"
        elif there is not None and there.name != column:
            problem = f"{pipeline.bronze.name} has it as {there.name!r}"
        if problem:
            raise ConfigurationError(
                f"{ENV_PREFIX}{settings[column]} gives a {kind_of(kind)} for the column {column!r}, but {problem}: set "
                f"{ENV_PREFIX}{settings[column]}_COLUMN to a name that no column has yet"
            )


def refuse_misfits(pipeline: Pipeline, bronze: DeltaTable, staged: StagedRows) -> None:
    """Refuse new definitions of which one fits no message type at all; staged files stay.

    Later on a message type that an expression does not fit harms itself only: its rows have NULL, and are counted.

    Raises:
        ConfigurationError: says why it does not fit.
    """
    if staged.misfits.keys() <= staged.fitted or not is_first(pipeline, bronze):
        return
    unfit = {column: why for column, why in staged.misfits.items() if column not in staged.fitted}
    raise ConfigurationError(f"nothing was written: {'; '.join(misfits_named(pipeline, unfit))}")


def report_definitions(pipeline: Pipeline, report: RunReport, bronze: DeltaTable, staged: StagedRows) -> None:
    """Report committed rows that definitions have made; `bronze`: the version that they were planned from."""
    definitions = pipeline.definitions
    if definitions is None:
        return
    said = [f"{text}: NULL there" for text in misfits_named(pipeline, staged.misfits)]
    said += unknown_names(pipeline, pipeline.catalog.message_columns(column_map(bronze), staged.types))
    for game, names in sorted(staged.named.items()):
        if len(names) > 1:
            one, other = (repr(name) for name in names[:2])
            rule = f"{ENV_PREFIX}ENTITY_NAMES={pipeline.settings.entity_names}"
            said.append(f"{one} and {other} are one {pipeline.settings.names.entity} by {rule}: {game}")
    report.add(BronzeResult(definitions=dict(definitions.described()), notices=said))


def misfits_named(pipeline: Pipeline, misfits: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    """A sentence for each column that is not computed for some message types."""
    definitions = pipeline.definitions
    settings = {item.column: item.setting.upper() for item in definitions.computed} if definitions is not None else {}
    for column, by_type in misfits.items():
        why = next(iter(by_type.values()))
        types = first_few(sorted(by_type), SHOWN, ", ")
        yield f"{ENV_PREFIX}{settings[column]} does not fit the message type {types}: {why}"


def unknown_names(pipeline: Pipeline, columns: ColumnMap) -> list[str]:
    """A warning for each setting with names of fields that no message type has."""
    definitions = pipeline.definitions
    decoded = list(dict.fromkeys(columns.owners.values()))
    said = []
    for item in definitions.computed if definitions is not None else ():
        names = dict.fromkeys(names[0] for sql in item.expressions.values() for names in sql.fields())
        unknown = [name for name in names if column_of(name, decoded) is None]
        if unknown and decoded:
            there = some_columns(decoded, unknown[0])
            said.append(f"{ENV_PREFIX}{item.setting.upper()}: no message type has {', '.join(unknown)}; there are {there}")
    return said


def made_by(settings: Settings) -> str:
    """The entity column, and the definitions that silver's tables are made by: a text without a slash."""
    marks = marks_of(settings)
    numbers = "".join(f"={name}:{mark:x}" for name, mark in marks.items() if mark)
    return settings.entity_column + numbers
