"""`game-events init`: a new domain: settings, a message and the commands that work with them; and the examples of domains."""

import os
import re
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from game_events.cli.output import Json, Output
from game_events.config.pipeline_settings import ENV_PREFIX
from game_events.errors import ConfigurationError
from game_events.plugins.local.producer.messages import ProtoVersions

SETTINGS_FILE = "game_events.yaml"
CONFIG = ENV_PREFIX + "CONFIG"
#: Fields that the scaffold's message has besides the three that are named.
_OTHER_FIELDS = ("value", "kind")
_GOLD_COLUMNS = ("events", "first_seen", "last_seen", "highest_value", "sum_of_values")
#: YAML reads them as other things than texts; gold's columns may hold no query.
_NO_TEXT = frozenset(("yes", "no", "on", "off", "true", "false", "null", "select"))
#: As long as the longest name made of it may be a table's.
_WORD = r"[a-z][a-z0-9_]{0,39}"

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write; made if it is not there.")]
Domain = Annotated[
    str | None, typer.Option(metavar="NAME", help="Topic and last part of the tables' names; default: the folder's name.")
]
Entity = Annotated[str, typer.Option(metavar="FIELD", help="Field that names the entity: tables of its own for each.")]
Key = Annotated[str, typer.Option(metavar="FIELD", help="Field that gold aggregates by.")]
Time = Annotated[str, typer.Option(metavar="FIELD", help="Field that says when it happened.")]


def init(
    folder: Folder,
    domain: Domain = None,
    entity: Entity = "site",
    key: Key = "device_id",
    time: Time = "happened_at",
    as_json: Json = False,
) -> None:
    """Write a settings file, a .proto and a README for another domain; the commands in it work as they are."""
    output = Output(as_json=as_json)
    written = scaffold(folder, domain or folder.resolve().name.lower().replace("-", "_"), entity, key, time)
    output.say(f"{folder}: {', '.join(path.name for path in written)}")
    output.say(f"now: cd {folder} && game-events demo")
    output.result({"success": True, "folder": str(folder.resolve()), "files": [path.name for path in written]})


def scaffold(folder: Path, domain: str, entity: str, key: str, time: str) -> list[Path]:
    """Write the files; all of them, or none.

    Raises:
        ConfigurationError: a name that cannot be one, or a file that is there already.
    """
    texts = _texts(domain, entity, key, time)
    named = {SETTINGS_FILE: SETTINGS_FILE, "message.proto": f"{domain}.proto", "README.md": "README.md"}
    templates = files(__package__) / "scaffold"
    targets = {folder / to: Template((templates / name).read_text("utf-8")).substitute(texts) for name, to in named.items()}
    there = [str(path) for path in targets if path.exists()]
    if there:
        raise ConfigurationError(f"{', '.join(there)} is there already: nothing was written; name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in targets.items():
            path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written: {error.strerror}") from error
    return list(targets)


def _texts(domain: str, entity: str, key: str, time: str) -> dict[str, str]:
    """What the templates' names stand for; ConfigurationError for a name that cannot be one."""
    texts = {"domain": domain, "entity": entity, "key": key, "time": time}
    for option, name in texts.items():
        if not re.fullmatch(_WORD, name) or name in _NO_TEXT:
            raise ConfigurationError(
                f"--{option}: {name!r} must be lower case a-z, digits and underscores, a-z first, and no word that "
                "means something else to YAML or SQL"
            )
    fields = (entity, key, time, *_OTHER_FIELDS)
    if len(set(fields)) != len(fields) or set(fields) & set(ProtoVersions.custom):
        raise ConfigurationError(f"--entity, --key and --time must be three names, none of them {' or '.join(_OTHER_FIELDS)}")
    for option, name in (("entity", entity), ("key", key)):
        if name in _GOLD_COLUMNS:
            raise ConfigurationError(f"--{option}: gold has a column {name!r} already, of {', '.join(_GOLD_COLUMNS)}")
        texts[f"{option}_word"] = re.sub(r"_(id|name)$", "", name)
    texts["message"] = "".join(part.capitalize() for part in domain.split("_"))
    return texts


def examples() -> dict[str, Path]:
    """The examples that come with this project: name -> folder with a settings file, a `.proto` and a README."""
    folder = Path(str(files(__package__))) / "example_files"
    return {found.name: found.resolve() for found in sorted(folder.iterdir()) if (found / SETTINGS_FILE).is_file()}


def use_example(name: str) -> None:
    """Take this process's settings, and those of what it starts, from an example's file.

    Raises:
        ConfigurationError: there is no such example.
    """
    there = examples()
    if name not in there:
        raise ConfigurationError(f"--example: there is no {name!r}; there are {', '.join(there)}")
    os.environ[CONFIG] = str(there[name] / SETTINGS_FILE)
