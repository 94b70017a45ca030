"""Grants in Unity Catalog: what the setting `GRANTS` wants for each table, what the catalog lacks of it, what it has besides.

A privilege on a table is of use only with `USE CATALOG` and `USE SCHEMA`, so whoever gets one gets these, too. Of the schema
only what its tables inherit (`SELECT`, `MODIFY`) can be surplus, and of the catalog, which others use, nothing. Guarantee:
without `revoke` nothing is taken away.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Self

from game_events.config.extensions import extensions_of
from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, GameEventsError, first_few
from game_events.extending import PLAYER_AGG
from game_events.lakehouse.tables import (
    BRONZE,
    OWN_TABLES,
    PARTITIONED,
    QUARANTINE,
    SILVER,
    Table,
    game_of_gold,
    game_of_silver,
    gold_of_all,
)
from game_events.plugins.catalog.catalogs.places import quoted
from game_events.plugins.catalog.catalogs.unity import AwayError, MissingError, UnityServer
from game_events.plugins.catalog.settings import EVERY_GAME, CatalogSettings, Grant

CATALOG, SCHEMA, TABLE = "catalog", "schema", "table"
USE = {CATALOG: "USE CATALOG", SCHEMA: "USE SCHEMA"}

#: Privileges of a schema that its tables inherit.
INHERITED = frozenset({"SELECT", "MODIFY", "ALL PRIVILEGES"})

#: Changes that a result names.
SHOWN = 5


@dataclass(frozen=True, order=True)
class Change:
    """A privilege that a principal lacks on something, or has without being in the settings (`surplus`)."""

    surplus: bool
    kind: str
    name: str
    principal: str
    privilege: str

    def __str__(self) -> str:
        """As the statement that makes it."""
        verb, to = ("REVOKE", "FROM") if self.surplus else ("GRANT", "TO")
        name = ".".join(map(quoted, self.name.split(".")))
        return f"{verb} {self.privilege} ON {self.kind.upper()} {name} {to} {quoted(self.principal)}"


@dataclass
class Plan:
    """What would have to change.

    Attributes:
        unregistered: tables that the catalog does not have yet.
        failed: table of which it is not known -> why.
    """

    changes: list[Change] = field(default_factory=list)
    unregistered: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether nothing has to change, of all tables."""
        return not self.changes and not self.failed

    @property
    def missing(self) -> list[Change]:
        """What principals lack."""
        return [change for change in self.changes if not change.surplus]

    @property
    def surplus(self) -> list[Change]:
        """What they have besides."""
        return [change for change in self.changes if change.surplus]

    @property
    def summary(self) -> str:
        """In a line."""
        text = f"{len(self.missing):,} missing, {len(self.surplus):,} surplus"
        if self.changes:
            text += f": {first_few(list(map(str, self.changes)), SHOWN)}"
        return text + (f"; not known: {first_few(self.failures, SHOWN)}" if self.failed else "")

    @property
    def failures(self) -> list[str]:
        """Tables of which it is not known, and why."""
        return [f"{name}: {why}" for name, why in self.failed.items()]


@dataclass(frozen=True)
class Content:
    """What a table has: layers, as grants name them, and the games that it may be of; empty: rows of all games."""

    layers: Set[str]
    games: Set[str] = frozenset()


class Grants:
    """The grants of the settings, in the schema of the settings' catalog."""

    def __init__(
        self,
        server: UnityServer,
        database: str,
        grants: Sequence[Grant],
        aggregates: Sequence[str] = (PLAYER_AGG,),
        *,
        is_partitioned: bool = False,
    ) -> None:
        """`aggregates`: names of all of gold's; `is_partitioned`: whether the games share a table of silver."""
        self._server = server
        self._database = database
        self._grants = grants
        self._aggregates = aggregates
        self._is_partitioned = is_partitioned

    @classmethod
    def of(cls, settings: Settings) -> Self | None:
        """Those of the settings; None: there are none."""
        own = CatalogSettings.of(settings)
        server = UnityServer.of(settings) if own.grants else None
        if server is None:
            return None
        aggregates = (PLAYER_AGG, *(aggregate.name for aggregate in extensions_of(settings).aggregates))
        return cls(server, str(settings.catalog), own.grants, aggregates, is_partitioned=settings.silver_layout == PARTITIONED)

    def plan(self, tables: Mapping[str, Table]) -> Plan:
        """What has to change for these tables, their schema and their catalog."""
        plan = Plan()
        content = {table.name: self._content(table.key) for table in tables.values()}
        wanted: dict[str, dict[str, set[str]]] = {}
        for name, has in content.items():
            try:
                if has is not None:
                    wanted[name] = self._wanted(name, has)
            except ConfigurationError as error:
                plan.failed[name] = str(error)
        everyone = {principal for of_table in wanted.values() for principal in of_table}
        catalog = self._database.partition(".")[0]
        plan.changes += self._changes(CATALOG, catalog, {principal: {USE[CATALOG]} for principal in everyone})
        try:
            plan.changes += self._changes(SCHEMA, self._database, {principal: {USE[SCHEMA]} for principal in everyone})
        except MissingError:  # no run has made it yet
            plan.unregistered += sorted(wanted)
            return plan
        for name, of_table in sorted(wanted.items()):
            try:
                plan.changes += self._changes(TABLE, f"{self._database}.{name}", of_table)
            except MissingError:
                plan.unregistered.append(name)
            except AwayError:
                raise
            except GameEventsError as error:
                plan.failed[name] = str(error)
        return plan

    def make(self, plan: Plan, *, revoke: bool) -> list[str]:
        """Make the changes of a plan, of surplus ones only with `revoke`; returns why some could not be made."""
        by_target = defaultdict[tuple[str, str, str], list[Change]](list)
        for change in plan.changes if revoke else plan.missing:
            by_target[change.kind, change.name, change.principal].append(change)
        failures = []
        for (kind, name, principal), changes in by_target.items():
            add = [change.privilege for change in changes if not change.surplus]
            remove = [change.privilege for change in changes if change.surplus]
            try:
                self._server.change_permissions(kind, name, principal, add=add, remove=remove)
            except AwayError:
                raise
            except GameEventsError as error:
                failures.append(f"{'; '.join(map(str, changes))}: {error}")
        return failures

    def give(self, tables: Mapping[str, Table]) -> list[str]:
        """Give new tables their grants; returns why some could not be given."""
        plan = self.plan(tables)
        return [*plan.failures, *self.make(plan, revoke=False)]

    def close(self) -> None:
        """End the connections of the server."""
        self._server.close()

    def _changes(self, kind: str, name: str, wanted: Mapping[str, set[str]]) -> Iterator[Change]:
        there = self._server.permissions(kind, name)
        for principal in sorted(wanted.keys() | there.keys()):
            of_settings = wanted.get(principal, set())
            of_catalog = there.get(principal, set())
            for privilege in sorted(of_settings - of_catalog):
                yield Change(False, kind, name, principal, privilege)
            may_be_surplus = {CATALOG: set[str](), SCHEMA: INHERITED & of_catalog, TABLE: of_catalog}[kind]
            for privilege in sorted(may_be_surplus - of_settings):
                yield Change(True, kind, name, principal, privilege)

    def _wanted(self, name: str, content: Content) -> dict[str, set[str]]:
        """Principal -> privileges on a table; ConfigurationError: a grant for some games would give the rows of all."""
        wanted = defaultdict[str, set[str]](set)
        for grant in self._grants:
            if content.layers.isdisjoint(grant.layers):
                continue
            if not content.games and grant.games != EVERY_GAME:
                raise ConfigurationError(
                    f"GAME_EVENTS_GRANTS: {name} has the rows of all games, so {', '.join(grant.to)} cannot get those of "
                    f"{', '.join(grant.games)} alone: leave `games` out, or use GAME_EVENTS_SILVER_LAYOUT=tables"
                )
            if all(map(grant.is_for, content.games)):
                for principal in grant.to:
                    wanted[principal] |= set(grant.privileges)
        return wanted

    def _content(self, key: str) -> Content | None:
        """What is in a table of this project; None: it is another one's."""
        if key in (BRONZE, QUARANTINE):
            return Content({"bronze"})
        if key == SILVER:
            return Content({"silver"})
        if key in map(gold_of_all, self._aggregates):
            # In the layout `partitioned` there is no other gold, and no other `unified`.
            return Content({"unified", "gold"} if self._is_partitioned else {"unified"})
        if (game := game_of_silver(key)) is not None:
            return Content({"silver"}, {game})
        if games := set(filter(None, (game_of_gold(key, aggregate) for aggregate in self._aggregates))):
            return Content({"gold"}, games)
        return Content({"own"}) if key in OWN_TABLES else None
