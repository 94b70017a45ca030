"""Routing of rows to games, and admission of new games."""

from dataclasses import dataclass

from game_events.config.settings import Settings
from game_events.lakehouse.tables import is_game

#: Why a row is in no game's table.
INVALID, NOT_ALLOWED, OVER_LIMIT = "invalid", "not_allowed", "over_limit"
#: Reason for rows without a name, where not every message type is decoded: no error.
NO_NAME = "no_name"


@dataclass(frozen=True)
class Routing:
    """Rules for the names of games; picklable.

    Attributes:
        allowed: the allow list; empty: every valid name.
        only: if not None, rows of other games are skipped, neither routed nor counted.
        unnamed: reason for rows without a name.
        known: names of existing games.
        room: number of new names that may get files in one pass; None: any.
    """

    allowed: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    unnamed: str = INVALID
    known: frozenset[str] = frozenset()
    room: int | None = None

    def refusal(self, name: object) -> str | None:
        """Why a name gets no table; None if it may."""
        if name is None:
            return self.unnamed
        if not is_game(name):
            return INVALID
        return NOT_ALLOWED if self.allowed and name not in self.allowed else None

    def counted_as(self, name: object, why: str) -> str:
        """Name under which refused rows are counted: invalid names together, as their number has no bound."""
        return "" if why in (INVALID, NO_NAME) else str(name)

    def skips(self, name: object) -> bool:
        """Whether rows of this name are left to another pass."""
        return self.only is not None and name not in self.only


def most_games(settings: Settings) -> int:
    """Upper bound of the number of games."""
    return max(settings.max_games, settings.max_games_ever)


def admit(settings: Settings, known: set[str], rows_by_new_game: dict[str, int]) -> tuple[set[str], dict[str, int]]:
    """Admit new names: those of the allow list always, others up to `max_games`, after that those with enough rows.

    So a flood of invented names with few rows each cannot keep out a real game; a flood with many rows each ends at
    `most_games`, after which only names of the allow list are admitted.

    Returns:
        the new games, and refused name -> rows.
    """
    admitted: set[str] = set()
    refused: dict[str, int] = {}
    for name, rows in sorted(rows_by_new_game.items(), key=lambda item: (-item[1], item[0])):
        games = len(known) + len(admitted)
        enough = rows >= settings.new_game_min_rows and games < most_games(settings)
        if name in settings.games or games < settings.max_games or enough:
            admitted.add(name)
        else:
            refused[name] = rows
    return admitted, refused
