"""Loads the modules of the setting `extensions`, and collects their declarations."""

import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from pyspark import cloudpickle

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, GameEventsError
from game_events.extending import BUILT_IN, DECLARATION, PLAYER_AGG, GoldAggregate, SilverTransformation
from game_events.rules import Rule

#: A module's list of quality rules.
RULES = "RULES"
SETTING = "GAME_EVENTS_EXTENSIONS"


@dataclass(frozen=True)
class Extensions:
    """Declarations of all modules, in the order of modules and files; `aggregates` without gold's built-in one."""

    transformations: tuple[SilverTransformation, ...] = ()
    aggregates: tuple[GoldAggregate, ...] = ()
    rules: tuple[Rule, ...] = ()

    def transformed(self, game: str) -> bool:
        """Whether a game's silver may have another number of rows than bronze."""
        return any(t.rows == "any" and t.applies_to(game) for t in self.transformations)


def load_extensions(names: Iterable[str]) -> Extensions:
    """Load importable modules and .py files (paths relative to the working folder), each once per process.

    Raises:
        ConfigurationError: one cannot be loaded, or has an invalid declaration; names module, file and line.
    """
    return _load(tuple(str(Path(n).expanduser().resolve()) if n.endswith(".py") else n for n in names))


def extensions_of(settings: Settings) -> Extensions:
    """The extensions of the settings, with names of assets; raises as `load_extensions`, and for ambiguous names of tables."""
    extensions = load_extensions(settings.extensions)
    names = settings.names
    _check_names(extensions.aggregates, {names.aggregate: "`aggregate` in GAME_EVENTS_NAMES"})
    assets = {a.name: names.asset(f"gold_{a.name}") for a in extensions.aggregates}
    return replace(extensions, aggregates=tuple(replace(a, asset_name=assets[a.name]) for a in extensions.aggregates))


@lru_cache
def _load(names: tuple[str, ...]) -> Extensions:
    declared: dict[int, object] = {}
    rules: list[Rule] = []
    for name in names:
        module = _module(name)
        for value in vars(module).values():
            declaration = getattr(value, DECLARATION, None) if inspect.isfunction(value) else None
            if declaration is not None:
                declared[id(declaration)] = declaration
        rules += _rules_of(module, name)
    extensions = Extensions(
        tuple(d for d in declared.values() if isinstance(d, SilverTransformation)),
        tuple(d for d in declared.values() if isinstance(d, GoldAggregate)),
        tuple(rules),
    )
    _check_names(extensions.aggregates, {PLAYER_AGG: BUILT_IN})
    return extensions


def _rules_of(module: ModuleType, name: str) -> Sequence[Rule]:
    listed = getattr(module, RULES, ())
    if not isinstance(listed, list | tuple) or not all(isinstance(rule, Rule) for rule in listed):
        raise ConfigurationError(f"{SETTING}: {RULES} of {name} ({module.__file__}) must be a list of game_events.rules.Rule")
    return listed


def _module(name: str) -> ModuleType:
    try:
        module = _from_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
    except GameEventsError as error:
        place = _place(error)
        raise ConfigurationError(f"{SETTING}: {name}: {'' if place in str(error) else place}{error}") from error
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        # SystemExit too: a script must not end this process silently.
        raise ConfigurationError(
            f"{SETTING}: {name} cannot be loaded: {_place(error)}{type(error).__name__}: {error}"
        ) from error
    # Spark's workers cannot import the user's file: its functions are pickled by value.
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return module


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigurationError(f"there is no such file; paths are relative to the working folder, {Path.cwd()}")
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(f"game_events_extension_{path.stem}_{digest}", path)
    if spec is None or spec.loader is None:
        raise ConfigurationError("this is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses find their module by its name.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: "
    ours = str(Path(__file__).parents[1])
    files = traceback.extract_tb(error.__traceback__)
    frames = [f for f in files if "importlib" not in f.filename and not f.filename.startswith(ours)]
    return f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""


def _check_names(aggregates: tuple[GoldAggregate, ...], wheres: dict[str, str]) -> None:
    """Refuse ambiguous names of tables: no aggregate's name may be another's, or end in `_` and another's.

    `gold_a_b_c` would be aggregate `c` of game `a_b` and aggregate `b_c` of game `a`. `wheres`: other names in use -> where.
    """
    for aggregate in aggregates:
        for other, where in wheres.items():
            short, long = sorted((aggregate.name, other), key=len)
            if f"_{long}".endswith(f"_{short}"):
                raise ConfigurationError(
                    f"{SETTING}: {aggregate} and gold aggregate {other} ({where}): their tables' names are ambiguous "
                    f"(gold_{{game}}_{short}): choose another name, which does not end in _{short}"
                )
        wheres[aggregate.name] = aggregate.where
