"""The sensor that makes partitions of games which the lakehouse knows and this Dagster instance does not."""

import dagster as dg
from pydantic import Field

from game_events.config.settings import Settings
from game_events.lakehouse.commits.incarnations import BronzeIdentity
from game_events.lakehouse.system_tables.progress import ProgressTable
from game_events.lakehouse.tables import BRONZE, Lakehouse, is_game
from game_events.orchestration.graph import Graph
from game_events.orchestration.sensors.ticks import Cursor, sensor, some


def games_of(settings: Settings) -> tuple[set[str], set[str]]:
    """Games that the pipeline has let in, and all names with a silver table.

    Raises:
        GameEventsError: a table cannot be read.
    """
    lakehouse = Lakehouse.of(settings)
    bronze = lakehouse.table(BRONZE).open_to_read()
    admitted = set(ProgressTable(lakehouse).read(BronzeIdentity.of(bronze).key).games) if bronze is not None else set()
    return admitted, set(lakehouse.games())


def to_add(settings: Settings, known: set[str], admitted: set[str], tables: set[str]) -> list[str]:
    """Names that become partitions: valid, allowed, and of those with no more than a folder only `max_games` in all."""

    def allowed(game: str) -> bool:
        return is_game(game) and (not settings.games or game in settings.games)

    sure = {g for g in admitted - known if allowed(g)}
    room = max(0, settings.max_games - len(known | sure))
    return sorted(sure) + sorted(g for g in tables - known - sure if allowed(g))[:room]


class Seen(Cursor):
    """The sensor's cursor: all names that were partitions when it looked. What is not one any more, a person has removed."""

    games: list[str] = Field(default_factory=list)


def build_new_games(graph: Graph) -> dg.SensorDefinition:
    """The sensor: it compares the lakehouse with the partitions; nothing is ever removed.

    A partition that a person has deleted is not added again: the next run that writes rows of the game does that.
    """

    @sensor(
        graph,
        "Games with tables made elsewhere (another Dagster instance, a restored lakehouse) become partitions. One that was "
        "deleted by hand stays away until the game has new rows.",
        60,
    )
    def new_games(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        settings, partitions = graph.source.read(), graph.keys.partitions
        known, seen = set(context.instance.get_dynamic_partitions(str(partitions.name))), set(Seen.read(context.cursor).games)
        admitted, tables = games_of(settings)
        names = to_add(settings, known, admitted - seen, tables - seen)
        context.update_cursor(Seen(games=sorted(seen | known)).model_dump_json())
        if not names:
            deleted = sorted((admitted | tables) & seen - known)
            without = f", but for those that were deleted by hand: {some(deleted)}" if deleted else ""
            return dg.SkipReason(f"every game of the lakehouse is a partition{without}")
        context.log.info("new_games=%s", ",".join(names))
        return dg.SensorResult(dynamic_partitions_requests=[partitions.build_add_request(names)])

    return new_games
