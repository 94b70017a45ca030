"""Creates the source of the settings."""

from game_events.config.settings import Settings
from game_events.lakehouse.tables import Lakehouse
from game_events.plugins.files.delta_table import TableSource
from game_events.plugins.files.source import FileSource
from game_events.sources.kafka.source import KafkaSource, subject_of
from game_events.sources.source import FILES, Source


def make_source(settings: Settings, timeout_s: float | None = None) -> Source:
    """The source; connects at its first call. A source of files is read-only: only a pipeline's own adds to the file log.

    `timeout_s`: longest wait for one answer; None: the source's default. Raises ConfigurationError if options that
    exactly-once depends on are set, or the folder of files is not.
    """
    if settings.source == FILES:
        return FileSource(settings, Lakehouse.of(settings), read_only=True)
    return KafkaSource(settings, timeout_s) if settings.source_table is None else TableSource(settings)


def subjects(settings: Settings, timeout_s: float | None = None) -> tuple[str, ...]:
    """Subjects of the source; the broker is asked only for topics that match a pattern; raises as `Source.snapshot`."""
    if settings.kafka_topics:
        return tuple(subject_of(topic) for topic in sorted(settings.kafka_topics))
    source = make_source(settings, timeout_s)
    return source.subjects(source.snapshot().latest)
