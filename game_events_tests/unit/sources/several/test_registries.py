"""Several registries: each id is asked of its own, under a name that no other one has."""

from __future__ import annotations

import pytest

from game_events.config.settings import load_settings
from game_events.decoding.frame import RegistrySchema, SchemaRef, bare, named, registry_of
from game_events.errors import ConfigurationError, TransientError
from game_events.schema_registry import SubjectVersion
from game_events.sources.several.registries import SeveralRegistries

SETTINGS = load_settings(
    schema_registry_url="http://eu",
    sources={"eu": {}, "us": {"schema_registry_url": "http://us"}, "us_too": {"schema_registry_url": "http://us"}},
)


class Registry:
    """Answers with its address."""

    def __init__(self, settings):
        self.url = settings.schema_registry_url
        self.asked = []
        self.error = None

    def fetch(self, schema_id):
        self.asked.append(schema_id)
        return RegistrySchema(schema_id, "AVRO", self.url) if schema_id in (7, "a-guid") else None

    def version_numbers(self, subject):
        if self.error is not None:
            raise self.error
        return [len(subject)]

    def versions(self, subject):
        return [SubjectVersion(subject, 1, 7)]

    def newest(self, subject):
        return (1, 7) if subject else None

    def subject_of(self, schema_id):
        return f"subject-{schema_id}"


@pytest.fixture
def made():
    clients = {}

    def connect(settings):
        client = Registry(settings)
        clients.setdefault(client.url, client)
        return clients[client.url]

    registries = SeveralRegistries(SETTINGS, connect)
    registries.clients = clients
    return registries


def test_ids_have_the_name_of_their_registry_and_tables_the_number():
    assert (named("", 7), named("us", 7), named("us", "a-guid")) == (7, "us/7", "us/a-guid")
    assert (bare(7), bare("us/7"), bare("us/a-guid"), bare("a-guid")) == (7, 7, "a-guid", "a-guid")
    assert (registry_of(7), registry_of("us/7"), registry_of("a-guid")) == ("", "us", "")
    assert SchemaRef.of("us/7") == SchemaRef(7, None)
    assert SchemaRef.of("us/a-guid") == SchemaRef(None, "a-guid")
    assert SchemaRef.of(None) == SchemaRef(None, None)


def test_an_id_is_asked_of_its_registry_alone(made):
    assert made.fetch(7) == RegistrySchema(7, "AVRO", "http://eu")
    assert made.fetch("us/7") == RegistrySchema("us/7", "AVRO", "http://us")
    assert made.fetch("us/8") is None
    assert {url: client.asked for url, client in made.clients.items()} == {"http://eu": [7], "http://us": [7, 8]}


def test_of_a_source_that_is_not_named_no_registry_is_asked(made):
    assert made.fetch("asia/7") is None
    assert all(client.asked == [] for client in made.clients.values())
    assert "which GAME_EVENTS_SOURCES does not name" in made.url_of("asia/7")
    assert made.url_of("us/7") == "http://us"


def test_sources_with_one_registry_share_its_ids(made):
    assert made.registries == {"eu": "", "us": "us", "us_too": "us"}


def test_subjects_are_of_a_registry_too(made):
    assert made.versions("us/a-value") == [SubjectVersion("us/a-value", 1, "us/7")]
    assert made.versions("a-value") == [SubjectVersion("a-value", 1, 7)]
    assert made.newest("us/a-value") == (1, "us/7")
    assert made.subject_of("us/7") == "us/subject-7"
    assert made.version_numbers("us/ab") == [2]


def test_a_refused_login_ahead_of_the_records_holds_up_nobody(made):
    made.clients["http://us"].error = ConfigurationError("refused")
    with pytest.raises(TransientError, match="refused"):
        made.version_numbers("us/a-value")
    assert made.version_numbers("a-value") == [7]
