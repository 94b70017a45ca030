"""What a chaos run did and found, as JSON and as Markdown."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass
class Kill:
    """One SIGKILL.

    Attributes:
        at_s: seconds since the run began.
        victim: whose process.
        where: the failpoint, or what had been committed last.
        back_s: seconds until bronze had its next commit; None: nobody waited for it.
    """

    at_s: float
    victim: str
    where: str
    back_s: float | None = None


@dataclass
class Account:
    """One chaos run.

    Attributes:
        seed: every choice follows from it, the moments of the scheduler's and the machine's apart.
        kills: one after another.
        exits: how drivers ended that nobody killed: name and code -> times.
        broken: invariant -> rows that break it.
        notes: what else is worth knowing.
    """

    seed: int
    seconds: float = 0.0
    kills: list[Kill] = field(default_factory=list)
    exits: dict[str, int] = field(default_factory=dict)
    records: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    games: int = 0
    schema_versions: int = 0
    commits: int = 0
    looks: int = 0
    broken: dict[str, int] = field(default_factory=dict)
    leaks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note_exit(self, how: str) -> None:
        """A driver that nobody killed has ended."""
        self.exits[how] = self.exits.get(how, 0) + 1

    @property
    def sound(self) -> bool:
        """Whether every invariant holds."""
        return bool(self.broken) and not any(self.broken.values()) and not self.leaks

    def to_json(self) -> str:
        """All of it."""
        return json.dumps(asdict(self) | {"sound": self.sound}, indent=1)

    def to_markdown(self) -> str:
        """For people: what was killed, and what holds."""
        by_victim = Counter(kill.victim for kill in self.kills)
        places: dict[str, Counter[str]] = {}
        for kill in self.kills:
            places.setdefault(kill.victim, Counter())[kill.where] += 1
        back = sorted(kill.back_s for kill in self.kills if kill.back_s is not None)
        lines = [
            f"Seed {self.seed}: {len(self.kills)} kills in {self.seconds:,.0f} s, {self.records:,} records, "
            f"{self.games} games, {self.schema_versions} schema versions, {self.commits:,} commits; "
            f"{'every invariant holds' if self.sound else 'INVARIANTS ARE BROKEN'}.",
            "",
            "| killed | times | where |",
            "|---|---|---|",
        ]
        for victim, times in by_victim.most_common():
            where = ", ".join(f"{place} ({n})" if n > 1 else place for place, n in places[victim].most_common())
            lines.append(f"| {victim} | {times} | {where} |")
        lines += ["", "| invariant | rows that break it |", "|---|---|"]
        lines += [f"| {name} | {rows} |" for name, rows in self.broken.items()]
        lines += [f"| a planted secret is found nowhere | {len(self.leaks)} |", ""]
        if back:
            lines.append(
                f"Bronze's next commit came {back[len(back) // 2]:.1f} s after a kill (median), {back[-1]:.1f} s at most."
            )
        if self.exits:
            lines.append("Ended by themselves: " + ", ".join(f"{name} ({n})" for name, n in sorted(self.exits.items())) + ".")
        return "\n".join([*lines, *self.notes]) + "\n"

    def save(self, folder: Path) -> None:
        """Both forms, beside each other."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"chaos-{self.seed}.json").write_text(self.to_json() + "\n")
        (folder / f"chaos-{self.seed}.md").write_text(self.to_markdown())
