"""`SOURCES` is introduced for a bronze that one source has filled: what was read before is the same topic."""

import pytest

from game_events.lakehouse.tables import BRONZE, QUARANTINE
from game_events.pipeline.runs.refresh import refresh, selection_of
from game_events_tests.support.fixtures.files import landing  # noqa: F401 - a fixture
from game_events_tests.support.reconciliation import count
from game_events_tests.support.worlds.file_samples import lines, put
from game_events_tests.support.worlds.quality import SCHEMA
from game_events_tests.support.worlds.topic import register
from game_events_tests.support.worlds.two_clusters import amounts, assert_sound, by_source, event, send


@pytest.mark.parametrize("name", ["eu", "other"])
def test_a_full_refresh_right_after_it_reads_each_record_once(make_settings, make_pipeline, name):
    """Also when another name takes the place of the first one."""
    before = make_settings() if name == "eu" else make_settings(sources={"eu": {}})
    send(before, register(before, SCHEMA), [*(event("uno", amounts(n)) for n in range(3)), b"\x0a\x7f"])
    refresh(make_pipeline(before))
    settings = make_settings(sources={name: {}}, allow_bronze_full_refresh=True)
    pipeline = make_pipeline(settings)
    assert refresh(pipeline, selection=selection_of(pipeline, full_refresh=["bronze"])).success
    assert by_source(settings) == {name: 3}
    assert (count(settings, BRONZE), count(settings, QUARANTINE)) == (3, 1)
    assert_sound(make_pipeline(settings))


def test_files_beside_a_topic_that_starts_at_its_end_are_read_from_the_first(make_settings, make_pipeline, landing):  # noqa: F811 - the fixture
    """`STARTING_OFFSETS=latest` of the top level is about topics: two years of files are not passed over."""
    topic = make_settings()
    send(topic, register(topic, SCHEMA), [event("uno", amounts(1))])
    put(landing, "a.jsonl", lines(range(4)))
    files = {"source": "files", "files_path": str(landing), "files_schema": str(landing.parent / "event.json")}
    settings = make_settings(sources={"eu": {}, "old": files | {"files_settle_s": 1}}, starting_offsets="latest")
    refresh(make_pipeline(settings))
    assert by_source(settings) == {"old": 4}
