"""Which rows of silver the export still has to send: these are not removed by age (`RETENTION_DAYS`)."""

from __future__ import annotations

from deltalake import DeltaTable

from game_events.config.type_names import game_of
from game_events.errors import DataError
from game_events.lakehouse.commits.transactions import BronzeIdentity, silver_app, txn
from game_events.pipeline.context import Pipeline
from game_events.plugins.export.rows import OnReplaced, noted_of, start_of
from game_events.plugins.export.settings import ExportSettings
from game_events.plugins.export.tables import ExportTables


def silver_taken(pipeline: Pipeline, name: str, silver: DeltaTable) -> int | None:
    """The last bronze batch of a silver table's rows that are planned to be sent; None: none of its rows is to be sent.

    0 for a table with replaced rows while they may all be sent again. Where gold is exported, new rows of silver say which
    players have changed; of a game that was never exported all of gold is sent.
    """
    export = ExportSettings.of(pipeline.settings)
    bronze = pipeline.tables.open_to_read(pipeline.bronze)
    if export.rest_url is None or bronze is None:
        return None
    identity = BronzeIdentity.of(bronze)
    game = game_of(name)
    table = pipeline.lakehouse.silver(name)
    upto = identity.taken(silver)
    gold: DeltaTable | None = None
    if export.rest_source == "gold":
        table = pipeline.lakehouse.gold(game)
        gold = pipeline.tables.peek(table)
        own = silver if name == game else pipeline.tables.peek(pipeline.lakehouse.silver(game))
        if gold is None or own is None:
            return None
        name, silver, upto = game, own, txn(gold, silver_app(own))
    planned = pipeline.tables.open_to_read(ExportTables.of(pipeline.lakehouse, pipeline.settings.key_column).planned)
    noted = noted_of(planned, identity, name, silver, gold)
    try:
        above, _ = start_of(game, table.name, upto or 0, noted.held, OnReplaced(export.rest_on_replaced))
    except DataError:  # a user decides what is sent
        return 0
    return None if gold is not None and above == 0 else above
