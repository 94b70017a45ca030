"""Finds sources by the name of their kind, and creates the source of the settings."""

from functools import cache
from typing import cast

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError
from game_events.plugin import Plugin, installed
from game_events.sources.source import Source, SourceContext

#: The core's own source, as a plug-in names its sources.
CORE = Plugin("core", sources={"kafka": "game_events.sources.kafka.source:KafkaSource"})


@cache
def _class_of_kind(kind: str) -> type[Source] | None:
    """The class of a kind of source; None: no installed plug-in brings it."""
    for plugin in (CORE, *installed()):
        if kind in plugin.sources:
            return cast(type[Source], plugin.load(plugin.sources[kind]))
    return None


def kind_of(kind: str) -> type[Source]:
    """The class of a kind that bronze was once read from; of one that is not installed any more, what holds for most."""
    return _class_of_kind(kind) or Source


def class_of(settings: Settings) -> type[Source]:
    """The class of the settings' source; ConfigurationError if it is not installed."""
    made = _class_of_kind(settings.source_kind)
    if made is None:
        raise ConfigurationError(f"there is no source `{settings.source_kind}`: install the plug-in that brings it")
    return made


def make_source(settings: Settings, timeout_s: float | None = None) -> Source:
    """The settings' source, which writes nothing (a pipeline makes its own); connects at its first call.

    `timeout_s`: longest wait for one answer; None: the source's default. Raises ConfigurationError if options that
    exactly-once depends on are set, or the folder of files is not.
    """
    context = SourceContext(settings, None, timeout_s=timeout_s, read_only=True)
    return class_of(settings)(context)


def subjects(settings: Settings, timeout_s: float | None = None) -> tuple[str, ...]:
    """Subjects of the source, which is asked only if the settings do not name them; raises as `Source.snapshot`."""
    named = class_of(settings).named_subjects(settings)
    if named is not None:
        return named
    source = make_source(settings, timeout_s)
    return source.subjects(source.snapshot().latest)
