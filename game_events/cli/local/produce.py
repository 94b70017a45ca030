"""`game-events produce`: simulated events, registered and written with the Confluent serializer."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from game_events.cli.common.arguments import Json
from game_events.cli.common.output import Output
from game_events.config.settings import Settings, load_settings
from game_events.errors import ConfigurationError
from game_events.producer.manifest import Manifest
from game_events.producer.produce import produce, produce_bulk
from game_events.producer.simulator import BulkSimulation, Simulation

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
    output, settings = Output(as_json=as_json), _settings(topic)
    names, wanted, before = _names(games, settings), _numbers("--versions", versions), _manifest(manifest)
    both: dict[str, Any] = {"games": names, "versions": wanted if "," in versions else wanted[0], "seed": seed}
    both["gamers_per_game"] = settings.producer.keys_per_entity
    shares = {"late_share": late_share, "duplicate_share": duplicate_share, "poison_share": poison_share}
    with _named_errors(), output.working("producing"):
        if bulk is not None:
            sent = produce_bulk(settings, BulkSimulation(records=bulk, hot_share=hot_share, **both), partitions=partitions)
        else:
            order = _numbers("--interleaving", interleaving) if interleaving else None
            few = Simulation(records_per_game_and_version=records, interleaving=order, **shares, **both)
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


def _settings(topic: str | None) -> Settings:
    if topic is None:
        return load_settings()
    return load_settings(kafka_topic=topic, kafka_topic_pattern=None, kafka_assign={}, source_table=None)


def _names(text: str | None, settings: Settings) -> Sequence[str]:
    if text is None:
        return settings.producer.entities
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
        found = "; ".join(f"--{e['loc'][0]}: {e['msg']}" if e["loc"] else e["msg"] for e in error.errors())
        raise ConfigurationError(f"cannot simulate that: {found}") from None
