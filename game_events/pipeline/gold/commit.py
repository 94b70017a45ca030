"""Commits of gold: one for each game, which replaces the aggregate that the game's plan was made from."""

from collections.abc import Mapping
from functools import partial

from game_events.errors import DataError
from game_events.lakehouse.commits.commit import Commit
from game_events.lakehouse.commits.evolution import changed_types
from game_events.lakehouse.commits.parallel import Committed, commit_games
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.snapshot import BATCH_INFO
from game_events.lakehouse.data.staging import discard
from game_events.lakehouse.tables import table_id
from game_events.pipeline.gold.aggregates import definition_app
from game_events.pipeline.gold.execute import Staged
from game_events.pipeline.gold.plan import GamePlan, GoldRun


def commit_plans(run: GoldRun, plans: Mapping[str, GamePlan], staged: Staged) -> Committed:
    """Commit the staged files of each game's plan."""
    commits = {game: partial(_commit, run, plan, staged) for game, plan in plans.items()}
    of = "" if run.built_in else f"{run.aggregate.name}:"
    return commit_games(commits, "gold_game_committed", run.pipeline.settings, of)


def _commit(run: GoldRun, plan: GamePlan, staged: Staged) -> Commit:
    aggregate, gold = run.aggregate, plan.gold
    table, files = run.pipeline.lakehouse.gold(plan.game, aggregate.name), staged.result.files.get(plan.game, [])
    # A change of the setting asks for other columns; a declaration in code may change types unnoticed.
    redefined = run.built_in and plan.declared != plan.definition
    if gold is not None and (aggregate.definition or plan.definition is not None) and not run.full and not redefined:
        other = changed_types(gold, staged.schema)
        if other:
            discard(table, files)
            raise DataError(
                f"{table.name}: {aggregate} gives other types than the table has: {'; '.join(other)}. Whoever reads the table "
                f"may not expect that: rename the columns, or refresh {aggregate.asset} fully"
            )
    # Two runs may have planned from the same batch of a silver table with rows replaced in between: one of them commits.
    expected: dict[str, int | None] = {plan.app: plan.taken, Txn.COMMITS: plan.commits}
    advance = {plan.app: plan.batch, Txn.COMMITS: (plan.commits or 0) + 1}
    if plan.definition is not None:
        # A run with another declaration must not be merged with.
        app = definition_app(aggregate.name)
        expected[app], advance[app] = plan.declared, plan.definition
    return Commit(
        table,
        staged.schema,
        files,
        expected=expected,
        advance=advance,
        table_id=table_id(gold),
        follows=gold,
        # A restore leaves every `txn` as it is; a full refresh is right after any.
        seen=None if plan.full or gold is None else gold.version(),
        replace=plan.full and gold is not None,
        reshape=plan.full,  # all rows are new: columns may go
        # Without a new row of this game its files stay.
        rewritten=frozenset(plan.old.paths if files else ()),
        info={BATCH_INFO: str(plan.batch), "run_id": run.pipeline.run_id}
        | ({"definition": aggregate.definition} if aggregate.definition else {}),
        description=f"{run.pipeline.settings.names.entity.capitalize()} {plan.game}: {aggregate.description}"[:1_000],
    )
