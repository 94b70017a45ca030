"""The sensor that makes partitions of games which the lakehouse knows and this Dagster instance does not."""

import dagster as dg

from game_events.config.settings import Settings
from game_events.lakehouse.commits.incarnations import BronzeIdentity
from game_events.lakehouse.system_tables.progress import ProgressTable
from game_events.lakehouse.tables import BRONZE, Lakehouse, is_game
from game_events.orchestration.graph import Graph
from game_events.orchestration.sensors.ticks import sensor


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


def build_new_games(graph: Graph) -> dg.SensorDefinition:
    """The sensor: it compares the lakehouse with the partitions; nothing is ever removed."""

    @sensor(graph, "Games with tables made elsewhere (another Dagster instance, a restored lakehouse) become partitions.", 60)
    def new_games(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        settings, partitions = graph.source.read(), graph.keys.partitions
        admitted, tables = games_of(settings)
        names = to_add(settings, set(context.instance.get_dynamic_partitions(str(partitions.name))), admitted, tables)
        if not names:
            return dg.SkipReason("every game of the lakehouse is a partition")
        context.log.info("new_games=%s", ",".join(names))
        return dg.SensorResult(dynamic_partitions_requests=[partitions.build_add_request(names)])

    return new_games
