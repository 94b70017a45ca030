"""Commands to try the system out.

`game-events demo`: the whole system on real parts, twice over, checked against what the producer sent.

`game-events produce`: simulated events, registered and written with the Confluent serializer.

`game-events init`: a new domain: settings, a message and the commands that work with them; and the examples of domains.
"""

import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from string import Template
from tempfile import TemporaryFile
from typing import Annotated, Any

import pyarrow as pa
import typer
from pydantic import ValidationError

from game_events.cli.output import Json, Output
from game_events.cli.run import run_and_show
from game_events.config.names import simple_call
from game_events.config.pipeline_settings import ENV_PREFIX
from game_events.config.settings import Settings, load_settings
from game_events.errors import ConfigurationError, DataError
from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.tables import BRONZE, QUARANTINE, UNIFIED, Lakehouse, Table
from game_events.pipeline.gold.plan import expressions
from game_events.plugins.local import demo_studio
from game_events.plugins.local.producer.messages import ProtoVersions
from game_events.plugins.local.producer.produce import GamerTruth, Manifest, produce, produce_bulk
from game_events.plugins.local.producer.simulator import BulkSimulation, Simulation
from game_events.plugins.local.producer.studio import CLUSTERS
from game_events.plugins.local.servers import local_stack
from game_events.plugins.local.servers.local_stack import StackState
from game_events.plugins.local.settings import OWN_PARTS, SampleDataSettings

SETTINGS_FILE = "game_events.yaml"

CONFIG = ENV_PREFIX + "CONFIG"

#: Below the state folder; recreated by each demo and kept afterwards.
FOLDER = "demo"

_EXAMPLES = "games, iot or studio (two clusters, bare records, doubles); default: what the settings describe."
Example = Annotated[str | None, typer.Option(metavar="NAME", help=_EXAMPLES)]

Truth = Callable[[GamerTruth], object]


def demo(example: Example = None, as_json: Json = False) -> None:
    """Broker, registry, producer, Spark, Delta and Dagster from nothing to checked tables; leaves nothing running."""
    output = Output(as_json=as_json)
    if example is not None:
        use_example(example)
    folder = (load_settings().state_dir / FOLDER).resolve()
    is_studio = example == demo_studio.EXAMPLE
    clusters = sorted(set(CLUSTERS.values())) if is_studio else ["stack"]
    stacks = {name: folder / name if is_studio else folder for name in clusters}
    for place in stacks.values():
        local_stack.down(place)
    shutil.rmtree(folder, ignore_errors=True)
    output.step("1. local stack", f": an Apache Kafka broker and a schema registry{', twice' if is_studio else ''}")
    try:
        states = {name: local_stack.up(place, on_progress=output.say) for name, place in stacks.items()}
        if is_studio:
            proto = examples()[demo_studio.EXAMPLE] / "studio.proto"
            report = demo_studio.run_studio(output, states, folder, proto)
        else:
            report = _waves(output, _use(folder, states["stack"]))
    finally:
        for place in stacks.values():
            local_stack.down(place)
        output.say("local stack stopped")
    output.result(report, success=bool(report["success"]))


def _use(folder: Path, state: StackState) -> Settings:
    """Point this process, and the Dagster run in it, at the demo's own parts."""
    settings = load_settings()
    chosen = {
        "STATE_DIR": str(folder),
        "LAKEHOUSE": str(folder / "lakehouse"),
        "KAFKA_TOPIC": f"{settings.produced_topic}_demo",
        **OWN_PARTS,
        **{"KAFKA_TOPIC_PATTERN": "", "KAFKA_ASSIGN": "{}", "SOURCES": "{}", "DECODING": "{}", "DEDUPLICATE": "[]"},
        "KAFKA_BOOTSTRAP_SERVERS": state.kafka_bootstrap_servers,
        "SCHEMA_REGISTRY_URL": state.schema_registry_url,
    }
    os.environ |= {ENV_PREFIX + key: value for key, value in chosen.items()}
    return load_settings()


def _waves(output: Output, settings: Settings) -> dict[str, object]:
    words = settings.names
    sample = SampleDataSettings.of(settings).producer
    usual = Simulation(games=sample.entities, gamers_per_game=sample.keys_per_entity)
    output.step(
        "2. first wave",
        f": {len(sample.entities)} {words.entities}, schema versions 1 and 2 interleaved; some poison, some late, some twice",
    )
    shares = {"poison_share": 0.02, "late_share": 0.05, "duplicate_share": 0.01}
    first, error = _wave(output, settings, usual.model_copy(update=shares))
    if error:
        return {"success": False, "error": error}
    lakehouse = Lakehouse.of(settings)
    before = _columns(lakehouse.table(BRONZE))

    new = f"a NEW schema version (3) and a NEW {words.entity} ({sample.new_entity})"
    output.step("3. second wave", f": {new}, nothing configured")
    more = {"versions": (2, 3), "games": (*sample.entities, sample.new_entity), "seed": 1, "poison_share": 0.01}
    second, error = _wave(output, settings, usual.model_copy(update=more))
    if error:
        return {"success": False, "error": error}

    output.step("4. what came of it")
    appeared = [column for column in _columns(lakehouse.table(BRONZE)) if column not in before]
    result = _compared(output, settings, first.merge(second), appeared)
    output.step("next")
    config = f"{CONFIG}={os.environ[CONFIG]} " if os.environ.get(CONFIG) else ""
    output.say(f"  look at the tables:    {config}GAME_EVENTS_LAKEHOUSE={result['lakehouse']} .venv/bin/game-events tables")
    output.say("  browse the lineage:    make up   (then open the address it prints)")
    return result


def _wave(output: Output, settings: Settings, simulation: Simulation) -> tuple[Manifest, str | None]:
    """Send records and run the pipeline; what was sent, and the run's error."""
    sent = produce(settings, simulation)
    output.say(f"{sent.records_total:,} records sent, {sum(sent.poison.values())} of them undecodable")
    result = run_and_show(output, settings)
    return sent, None if result.success else result.error or "the run failed"


def _compared(output: Output, settings: Settings, truth: Manifest, appeared: list[str]) -> dict[str, object]:
    """Compare the tables with the records that were sent; the demo's result."""
    words = settings.names
    lakehouse = Lakehouse.of(settings)
    poison = sum(truth.poison.values())
    bronze, quarantined = (_stored(lakehouse.table(name), ["_kafka_offset"]).num_rows for name in (BRONZE, QUARANTINE))
    output.say(f"schema versions seen: {', '.join(map(str, truth.schema_ids))}; columns that appeared: {', '.join(appeared)}")
    undecodable = f"(undecodable records sent: {poison})"
    output.say(f"Kafka {truth.records_total:,} records = bronze {bronze:,} + quarantine {quarantined:,} {undecodable}")
    _top(output, settings, lakehouse.table(UNIFIED))
    wrong = differences(settings, truth)
    exact = not wrong and bronze + quarantined == truth.records_total and quarantined == poison
    output.say(
        f"gold of {sum(map(len, truth.truth.values()))} {words.keys} in {len(truth.truth)} {words.entities} equals what the "
        "producer sent: " + ("yes" if exact else f"NO: {wrong[:5]}")
    )
    compared = truths(settings)
    unknown = [column for column, known in compared.items() if known is None]
    if unknown:
        output.say(f"columns that the producer keeps no account of: {', '.join(unknown)}")
    return {
        "success": exact,
        "rows": {"kafka": truth.records_total, "bronze": bronze, "quarantine": quarantined},
        "schema_versions": sorted(truth.schema_ids),
        "columns_appeared": appeared,
        "columns_compared": [column for column, known in compared.items() if known is not None],
        "games": sorted(truth.truth),
        "lakehouse": lakehouse.root,
    }


def _top(output: Output, settings: Settings, unified: Table) -> None:
    rows = _stored(unified)
    if not rows.num_rows:
        raise DataError(f"{unified.uri} has no rows")
    entity, key, first, *_ = columns = rows.column_names
    best = rows.sort_by([(first, "descending"), (key, "ascending"), (entity, "ascending")]).slice(0, 5).to_pylist()
    output.table(f"top {settings.names.keys} ({unified.name})", columns, [[row[c] for c in columns] for row in best])


def _columns(table: Table) -> list[str]:
    handle = table.open()
    return [] if handle is None else [field.name for field in handle.schema().fields]


def _stored(table: Table, columns: list[str] | None = None) -> pa.Table:
    """Rows of a table; none, and no columns, if it is not there."""
    handle = table.open()
    return read_arrow(table, handle, columns) if handle is not None else pa.table({})


def truths(settings: Settings) -> dict[str, Truth | None]:
    """Gold's columns, and what the manifest says each must be; None: it does not say."""
    sql = settings.gold_columns or expressions(settings)
    return {column: _truth(settings, text) for column, text in sql.items()}


def differences(settings: Settings, manifest: Manifest) -> list[str]:
    """Where gold differs from what was sent; empty if nowhere."""
    wrong: list[str] = []
    lakehouse = Lakehouse.of(settings)
    known = {column: truth for column, truth in truths(settings).items() if truth is not None}
    for entity, keys in manifest.truth.items():
        rows = _stored(lakehouse.gold(entity)).to_pylist()
        stored = {row[settings.key_column]: tuple(row[column] for column in known) for row in rows}
        sent = {name: tuple(truth(t) for truth in known.values()) for name, t in keys.items()}
        wrong += [
            f"{entity}/{name}: {stored.get(name)} is not {sent.get(name)}"
            for name in sorted(stored.keys() | sent.keys())
            if not _same(stored.get(name), sent.get(name))
        ]
    return wrong


def _truth(settings: Settings, sql: str) -> Truth | None:
    function, argument = simple_call(sql) or ("", "")
    # Other columns may be NULL.
    if function == "count" and argument in ("*", "1", settings.entity_column, settings.key_column, settings.time_column):
        return lambda truth: truth.session_count
    if argument == settings.time_column:
        return {"min": lambda t: t.min_timestamp, "max": lambda t: t.max_timestamp}.get(function)
    # Of other fields the manifest knows the numeric ones; it says so by having them.
    of_numbers: dict[str, Truth] = {
        "sum": lambda t: t.numbers[argument].total,
        "min": lambda t: t.numbers[argument].low,
        "max": lambda t: t.numbers[argument].high,
        "avg": lambda t: t.numbers[argument].total / t.session_count,
    }
    generator = SampleDataSettings.of(settings).producer.fields.get(argument)
    return of_numbers.get(function) if generator is not None and generator.numeric else None


def _same(stored: tuple[object, ...] | None, sent: tuple[object, ...] | None) -> bool:
    if stored is None or sent is None:
        return stored is sent
    return all(
        # A sum of floating point numbers depends on the order in which they come.
        math.isclose(a, b, rel_tol=1e-9) if isinstance(a, float) and isinstance(b, int | float) else a == b
        for a, b in zip(stored, sent, strict=True)
    )


#: Parameters that only one of the two ways to send knows.
_ONE_BY_ONE = ("records", "rate", "late_share", "duplicate_share", "poison_share", "interleaving")

_BULK = ("hot_share",)


def produce_events(  # noqa: PLR0913, PLR0917 - each option of the command is a parameter
    context: typer.Context,
    games: Annotated[
        str | None,
        typer.Option("--games", "--entities", help="Names, comma separated, or a number of games; default: the settings'."),
    ] = None,
    records: Annotated[int, typer.Option(min=1, help="Records for each game and version.")] = 100,
    versions: Annotated[str, typer.Option(help="How many schema versions (2 means 1 and 2), or a list: 2,5.")] = "2",
    seed: Annotated[int, typer.Option(help="The same seed gives the same records.")] = 0,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Records per second; default: as fast as it goes.")] = None,
    late_share: Annotated[float, typer.Option(min=0, max=1, help="Share of records that are days late.")] = 0.0,
    duplicate_share: Annotated[float, typer.Option(min=0, max=1, help="Share of records that are sent twice.")] = 0.0,
    poison_share: Annotated[float, typer.Option(min=0, max=1, help="Share of undecodable records, on top.")] = 0.0,
    interleaving: Annotated[str | None, typer.Option(help="Order of versions, repeated: 1,1,2.")] = None,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions, if the topic is made.")] = 4,
    bulk: Annotated[int | None, typer.Option(min=1, help="High volume: so many records in all, from a pool of events.")] = None,
    hot_share: Annotated[float | None, typer.Option(min=0, max=1, help="With --bulk: share of the first game.")] = None,
    manifest: Annotated[Path | None, typer.Option(help="Where to write what was sent; added to an existing file.")] = None,
    topic: Annotated[str | None, typer.Option(help="Where to write; default: the first topic of the settings.")] = None,
    as_json: Json = False,
) -> None:
    """Register the schema versions, write events to the topic, and say exactly what was sent."""
    _refuse_options_without_effect(context, bulk=bulk is not None)
    output = Output(as_json=as_json)
    # Only the topic: nothing else that the settings say of where records come from.
    other: dict[str, Any] = {"kafka_topic_pattern": None, "kafka_assign": {}, "source_table": None}
    settings = load_settings() if topic is None else load_settings(kafka_topic=topic, **other)
    names = _names(games, settings)
    wanted = _numbers("--versions", versions)
    before = _manifest(manifest)
    common: dict[str, Any] = {"games": names, "versions": wanted if "," in versions else wanted[0], "seed": seed}
    common["gamers_per_game"] = SampleDataSettings.of(settings).producer.keys_per_entity
    shares = {"late_share": late_share, "duplicate_share": duplicate_share, "poison_share": poison_share}
    with _named_errors(), output.working("producing"):
        if bulk is not None:
            sent = produce_bulk(settings, BulkSimulation(records=bulk, hot_share=hot_share, **common), partitions=partitions)
        else:
            order = _numbers("--interleaving", interleaving) if interleaving else None
            few = Simulation(records_per_game_and_version=records, interleaving=order, **shares, **common)
            sent = produce(settings, few, partitions=partitions, rate=rate)
    if manifest is not None:
        (before.merge(sent) if before is not None else sent).save(manifest)
    _show(output, sent, settings.names.entities)


def _show(output: Output, sent: Manifest, entities: str) -> None:
    poison = sum(sent.poison.values())
    output.say(
        f"{sent.records_total:,} records to topic {sent.topic}: {len(sent.records)} {entities}, "
        f"schema versions {', '.join(map(str, sent.schema_ids))}, {poison:,} of them undecodable"
    )
    output.result(
        {
            "topic": sent.topic,
            "records": sent.records_total,
            "decodable": sent.decodable,
            "poison": dict(sent.poison),
            "schema_ids": sent.schema_ids,
            "games": sorted(sent.records),
        }
    )


def _refuse_options_without_effect(context: typer.Context, *, bulk: bool) -> None:
    """Whoever asks for faults or a rate has to get them, or to hear that there are none."""
    for name in _ONE_BY_ONE if bulk else _BULK:
        # By the name: newer versions of typer have a click of their own.
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"{'not' if bulk else 'only'} with --bulk", param_hint=f"--{name.replace('_', '-')}")


def _names(text: str | None, settings: Settings) -> Sequence[str]:
    if text is None:
        return SampleDataSettings.of(settings).producer.entities
    if text.isdigit():
        begin = re.sub(r"[^a-z0-9]+", "_", settings.names.entity.lower()).strip("_") or "entity"
        return tuple(f"{begin}_{number:04d}" for number in range(1, int(text) + 1))
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigurationError(f"{option}: {text!r} is no number and no list of numbers (2 or 1,1,2)") from None


def _manifest(path: Path | None) -> Manifest | None:
    """The manifest that this wave is added to; that it can be read and written is known before anything is sent."""
    if path is None:
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ConfigurationError(f"--manifest: {path} cannot be written: {error.strerror}") from None
    if not path.is_file():
        return None
    try:
        return Manifest.load(path)
    except (ValidationError, UnicodeDecodeError):
        raise ConfigurationError(f"--manifest: {path} is a file, but no manifest: name another one") from None


@contextmanager
def _named_errors() -> Iterator[None]:
    """What the simulation refuses, in the words of the options."""
    try:
        yield
    except ValidationError as error:
        problems = "; ".join(f"--{e['loc'][0]}: {e['msg']}" if e["loc"] else e["msg"] for e in error.errors())
        raise ConfigurationError(f"cannot simulate that: {problems}") from None


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
    existing = [str(path) for path in targets if path.exists()]
    if existing:
        raise ConfigurationError(f"{', '.join(existing)} is there already: nothing was written; name another folder")
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
    return {example.name: example.resolve() for example in sorted(folder.iterdir()) if (example / SETTINGS_FILE).is_file()}


def use_example(name: str) -> None:
    """Take this process's settings, and those of what it starts, from an example's file.

    Raises:
        ConfigurationError: there is no such example.
    """
    folders = examples()
    if name not in folders:
        raise ConfigurationError(f"--example: there is no {name!r}; there are {', '.join(folders)}")
    os.environ[CONFIG] = str(folders[name] / SETTINGS_FILE)
