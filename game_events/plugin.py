"""What a plug-in brings to the core, and which plug-ins are installed.

The core imports no plug-in. A plug-in is a package with a value `PLUGIN`. It names its parts as texts, `module:attribute`,
which are imported at their first use: a plug-in that is not used costs nothing. The project's own are listed in `BUILT_IN`;
those of a user are named by entry points of the group `game_events.plugins` (`name = "package:PLUGIN"`). See docs/extending.md.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from game_events.errors import ConfigurationError

#: Packages of the project's own plug-ins, in the order in which their parts are asked.
BUILT_IN = ("files", "governance", "catalog", "export", "alerts", "local", "msk", "iceberg")
ENTRY_POINTS = "game_events.plugins"


@dataclass(frozen=True)
class Command:
    """A command of the command line: its function or typer app, its line in `game-events --help`.

    `former`: an earlier name, which still works and is not listed.
    """

    target: str
    help: str
    former: str | None = None


@dataclass(frozen=True)
class Plugin:
    """What a plug-in brings; each text is `module:attribute`.

    Attributes:
        name: name of the plug-in, and of its extra (`pip install 'game-events[export]'`).
        packages: importable packages that come with the extra.
        settings: a class of settings (`config.pipeline_settings.SettingsGroup`).
        commands: name -> command.
        sources: value of the setting `source` -> class, a `sources.source.Source`, which shows what it takes.
        kafka_logins: value of the setting `kafka_login` -> function `(Settings) -> tokens`: an object that is pickled for the
            workers; `tokens("")` gives a token for Kafka and the time at which it ends, or raises a GameEventsError, and
            `str(tokens)` is shown.
        definitions: function `(Graph) -> dagster.Definitions`.
        checks: sequence of `TableCheck`: asset checks beside those of the core.
        doctor: function `(Settings) -> Mapping[str, Callable[[], str]]`: what `game-events doctor` checks beside the core, by
            name; the text is shown, a ConfigurationError or DataError is a failed check.
        run_observer: function `(Pipeline, job, is_streaming) -> RunObserver`: gets what each run does.
        command_run_ended: function `(DagsterInstance, Settings, run id)`: called at the end of each run of the command line.
        record_filter: function `(Pipeline, bronze) -> RecordFilter | None`: says which records must not be stored.
        erase_rejected: function `(Pipeline, records) -> int`: erases records of quarantine that the filter refuses later.
        silver_taken: function `(Pipeline, name, silver) -> int | None`: the last bronze batch of which the plug-in needs no row
            of that table of silver any more (None: of any batch): older rows of later ones are not removed by age.
    """

    name: str
    packages: tuple[str, ...] = ()
    settings: str | None = None
    commands: Mapping[str, Command] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    kafka_logins: Mapping[str, str] = field(default_factory=dict)
    definitions: str | None = None
    checks: str | None = None
    doctor: str | None = None
    run_observer: str | None = None
    command_run_ended: str | None = None
    record_filter: str | None = None
    erase_rejected: str | None = None
    silver_taken: str | None = None

    def load(self, target: str) -> Any:  # noqa: ANN401 - of any kind
        """A part of this plug-in; ConfigurationError if a package that comes with the extra is not installed."""
        module, _, attribute = target.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in self.packages:
                raise
            raise ConfigurationError(
                f"the plug-in {self.name} needs the package {error.name}: pip install 'game-events[{self.name}]'"
            ) from error


@cache
def installed() -> tuple[Plugin, ...]:
    """All plug-ins: the project's own whose packages are there, then those of entry points, by name.

    Raises:
        ConfigurationError: an entry point cannot be loaded, or two plug-ins have one name, or one command.
    """
    plugins = (*_built_in(), *_of_users())
    names = {"plug-in": [p.name for p in plugins], "command": [name for p in plugins for name in p.commands]}
    for what, brought in names.items():
        for name in brought:
            if brought.count(name) > 1:
                raise ConfigurationError(f"two plug-ins bring the {what} {name!r}: remove one of them")
    return plugins


def parts(kind: str) -> Iterator[Any]:
    """The part of that kind (a field of `Plugin`) of each plug-in that has one."""
    for plugin in installed():
        target = getattr(plugin, kind)
        if target is not None:
            yield plugin.load(target)


def _built_in() -> Iterator[Plugin]:
    for name in BUILT_IN:
        package = f"game_events.plugins.{name}"
        try:
            yield importlib.import_module(package).PLUGIN
        except ModuleNotFoundError as error:
            if error.name not in ("game_events.plugins", package):
                raise


def _of_users() -> Iterator[Plugin]:
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        try:
            plugin = entry.load()
        except Exception as error:
            raise ConfigurationError(f"the plug-in {entry.name} ({entry.value}) cannot be loaded: {error}") from error
        if not isinstance(plugin, Plugin):
            raise ConfigurationError(f"the plug-in {entry.name} ({entry.value}) is no game_events.plugin.Plugin")
        yield plugin
