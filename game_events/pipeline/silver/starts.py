"""From which bronze batch each game is staged, by its silver table and quarantine's decisions."""

from collections.abc import Iterable
from dataclasses import dataclass

from game_events.lakehouse.commits.incarnations import incarnation
from game_events.lakehouse.commits.parallel import for_games, guarded
from game_events.lakehouse.commits.restores import restored
from game_events.lakehouse.commits.transactions import Txn, txns
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.system_tables.progress import Progress
from game_events.pipeline.context import Pipeline
from game_events.pipeline.quality.decisions import Decisions
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.silver.stage import SilverInput, Start


@dataclass(frozen=True)
class SilverRun:
    """Input of every pass; `state`: the progress that the run began with. `games`: only these. `full`: replace their tables."""

    pipeline: Pipeline
    source: SilverInput
    state: Progress
    report: RunReport
    games: frozenset[str] | None
    full: bool

    @property
    def whole(self) -> bool:
        """Whether the low watermark moves."""
        return self.games is None and not self.full


def starts_of(run: SilverRun, decisions: Decisions, games: Iterable[str], *, redecide: bool) -> dict[str, Start | str]:
    """Game -> from which batch it is staged, by its own table and quarantine's decisions; or why its table cannot be read."""
    bronze = run.source.bronze
    needed = (bronze.erased_app, Txn.ERASURES, Txn.ROWS_DROPPED, Txn.ROWS_QUARANTINED)

    def start(game: str) -> Start:
        handle = run.pipeline.handles.take(run.pipeline.lakehouse.silver(game))
        # The handle keeps what was read: during a long job the log may lose the entries that the commit needs.
        txns(handle, needed)
        taken, decided = bronze.taken(handle), decisions.batch(game)
        whole = run.full or decisions.incarnation(game) > incarnation(handle)
        whole = whole or taken is None or (handle is not None and restored(handle))
        # Rows that quarantine holds from other contents of bronze are decided again, too.
        again = redecide or (decided is None and game in decisions.rejected_rows)
        begin = 0 if taken is None or whole or again else taken
        return Start(handle, taken, begin, replace=handle is not None and begin == 0, decided=decided or 0, redecide=again)

    return for_games(games, guarded(start))


def is_at_watermark(state: Progress, decisions: Decisions, game: str, start: Start) -> bool:
    """Whether a game's rows above the low watermark are exactly those that its table lacks.

    | its silver table | at the low watermark |
    |---|---|
    | none | if the watermark is 0, or no row of the game can be below it: the game is new, and no name was ever refused |
    | of other contents of bronze | if the watermark is 0: the staged rows replace the table |
    | restored, or to be replaced | no |
    | ahead of the watermark (a crash, a concurrent run) | no: rows would be added twice |
    | behind its known batch, or a refused name's | no: rows are missing below the watermark |
    | else | yes |

    And quarantine has decided on no row that the table lacks: those decisions hold, whatever the rules are now.
    """
    floor = state.floor(Layer.SILVER)
    if game in state.failed_in(Layer.SILVER) or start.redecide or start.decided > (start.taken or 0):
        return False
    if decisions.incarnation(game) > incarnation(start.handle):
        return False
    if start.handle is None:
        return not floor or (game not in state.games and not state.unrouted_batch)
    if start.taken is None:
        return not floor
    return not start.replace and max(state.games.get(game, 0), state.unrouted_batch) <= start.taken <= floor


def is_overtaken(run: SilverRun, start: Start) -> bool:
    """Whether a concurrent run has read later batches: this run would replace its rows by fewer."""
    later = (run.full or start.replace) and (start.taken or 0) > run.source.batch
    return later or (start.redecide and start.decided > run.source.batch)
