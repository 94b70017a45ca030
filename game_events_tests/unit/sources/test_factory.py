"""Sources are found by their kind: the core's own, those of plug-ins, and kinds that only old commits name."""

import re
import uuid
from pathlib import Path

import pytest

import game_events
from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.plugin import Plugin
from game_events.sources import factory
from game_events.sources.factory import class_of, kind_of, make_source, subjects
from game_events.sources.source import Gap, MicroBatch, Partition, Source, SourceSnapshot, id_apps, id_of_halves

QUEUE_ID = str(uuid.UUID(int=7))

#: What only sources themselves may ask.
ASKS = re.compile(
    r"isinstance\([^)]*Source\b|\.(source|source_kind) (==|!=|in) ?[\"'({[]|plugins\.files"
    r"|\.kind (==|!=|in) (KAFKA|FILES|TABLE)\b"
)


class QueueSource(Source):
    """As in the docstring of `Source`: a queue of numbered messages."""

    kind = "queue"

    def __init__(self, context):
        self.context = context

    def snapshot(self, **_):
        queue = Partition("http://queue", QUEUE_ID, 0, self.kind)
        return SourceSnapshot({queue: 3}, {queue: 10})

    def offsets_at(self, *_):
        return {}

    def batch_limit(self, _):
        return 100

    def reading(self, _):
        raise AssertionError("no worker reads")


@pytest.fixture
def with_queue(monkeypatch):
    """A plug-in of the user's brings the source."""
    plugin = Plugin("mine", sources={"queue": f"{__name__}:QueueSource"})
    monkeypatch.setattr(factory, "installed", lambda: (plugin,))
    factory._class_of_kind.cache_clear()
    yield
    factory._class_of_kind.cache_clear()


@pytest.mark.usefixtures("with_queue")
def test_a_source_of_a_plug_in_is_made_by_its_kind_and_has_a_default_for_all_else():
    settings = load_settings().model_copy(update={"source": "queue"})
    source = make_source(settings)
    assert isinstance(source, QueueSource)
    assert source.context.read_only
    now = source.snapshot()
    (queue,) = now.latest
    batch = MicroBatch(now.earliest, now.latest)
    assert queue.app == f"queue:{QUEUE_ID}"
    assert str(queue) == "http://queue"
    assert (source.check(), source.missing(batch), source.changed(batch)) == ("7 records", (), None)
    assert (source.epochs_before(now, {}), source.lost_rows(now, None), source.wants("any")) == ({}, None, False)
    assert (source.schemas(), source.expected_types(), source.file_counts(), source.tables(None)) == ([], [], {}, [])
    assert source.gone_text("is", "has") == "has expired there"
    assert subjects(settings) == ()
    assert source.commit_group_offsets({}) is None
    (upstream,) = source.upstreams(settings)
    assert upstream.key[0] == "queue"
    assert source.subject_upstream(settings, "events-value").key == ("schema_registry", "events-value")
    assert source.address(settings, "http://queue") == "http://queue"
    assert (source.name(settings), source.holder(settings), source.unencrypted(settings)) == ("queue", "queue", [])
    registry = object()
    assert source.lookup(settings, lambda _: registry) is registry


def test_the_halves_of_an_id_make_it_again():
    queue = Partition("http://queue", QUEUE_ID, 0, "queue")
    assert list(queue.id_txns) == id_apps("http://queue", "queue")
    assert id_of_halves(*queue.id_txns.values(), "queue") == QUEUE_ID


def test_a_source_that_is_not_installed_is_named_and_what_it_has_left_behind_is_read(monkeypatch):
    monkeypatch.setattr(factory, "installed", tuple)
    factory._class_of_kind.cache_clear()
    try:
        with pytest.raises(ConfigurationError, match="no source `files`: install the plug-in"):
            class_of(load_settings(source="files", files_path="/landing"))
        assert (kind_of("files").gap, kind_of("files").unit, kind_of("files").alone) == (Gap, 1, False)
        assert kind_of("kafka").one_by_one
    finally:
        factory._class_of_kind.cache_clear()


def test_settings_refuse_a_source_that_no_plug_in_brings():
    with pytest.raises(ConfigurationError, match="must be one of kafka, files"):
        load_settings(source="queue")


def test_no_module_asks_which_source_it_is_but_the_sources():
    root = Path(game_events.__file__).parent
    asking = [
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if ASKS.search(path.read_text()) and not str(path.relative_to(root)).startswith(("sources/", "plugins/files/"))
    ]
    assert asking == []
