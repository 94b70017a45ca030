"""The source that the settings name, and its subjects."""

from __future__ import annotations

from game_events.config.settings import Settings
from game_events.lakehouse.tables import Lakehouse
from game_events.sources.core.source import FILES, Source
from game_events.sources.delta_table import TableSource
from game_events.sources.files.source import FileSource
from game_events.sources.kafka.source import KafkaSource, subject_of


def make_source(settings: Settings, timeout_s: float | None = None) -> Source:
    """The source; connects when it is asked for something. Of files one that only looks: a pipeline's own takes them in.

    Args:
        settings: the settings.
        timeout_s: longest wait for one answer; None: the source's own.

    Raises:
        ConfigurationError: options that exactly-once depends on are set, or no folder of files.
    """
    if settings.source == FILES:
        return FileSource(settings, Lakehouse.of(settings), look_only=True)
    return KafkaSource(settings, timeout_s) if settings.source_table is None else TableSource(settings)


def subjects(settings: Settings, timeout_s: float | None = None) -> tuple[str, ...]:
    """Subjects of the source; the broker is only asked if a pattern says which topics there are.

    Raises:
        ConfigurationError, TransientError: it was, and does not say.
    """
    if settings.kafka_topics:
        return tuple(subject_of(topic) for topic in sorted(settings.kafka_topics))
    source = make_source(settings, timeout_s)
    return source.subjects(source.snapshot().latest)
