"""Registration, with the Confluent client's own fake registry and with bad answers."""

import httpx2
import pytest
from confluent_kafka.schema_registry.error import SchemaRegistryError

from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError, TransientError
from game_events.plugins.local.producer.messages import BUILT_IN
from game_events.plugins.local.producer.produce import register_versions
from game_events.schema_registry import registry_client

SETTINGS = load_settings(schema_registry_url="mock://registration", kafka_topic="games")


def test_texts_stand_under_the_topics_subject_in_order():
    client = registry_client(SETTINGS)
    ids = register_versions(client, SETTINGS, (3, 1))
    assert list(ids) == [1, 3]
    assert [client.get_schema(ids[version]).schema_str for version in (1, 3)] == [BUILT_IN.text(1), BUILT_IN.text(3)]
    assert client.get_schema(ids[1]).schema_type == "PROTOBUF"
    # Sorted: the fake lists them in the order of a set.
    assert sorted(client.get_versions("games-value")) == [1, 2]


def test_registering_again_gives_the_same_ids():
    client = registry_client(SETTINGS)
    assert register_versions(client, SETTINGS, (1, 2)) == register_versions(client, SETTINGS, (1, 2))
    assert len(client.get_versions("games-value")) == 2


class FailingRegistry:
    def __init__(self, error):
        self.error = error

    def register_schema(self, *_):
        raise self.error


@pytest.mark.parametrize(
    ("error", "expected", "says"),
    [
        (SchemaRegistryError(401, -1, ""), ConfigurationError, "GAME_EVENTS_SCHEMA_REGISTRY_USER"),
        (SchemaRegistryError(409, 409, "incompatible"), ConfigurationError, "incompatible"),
        (SchemaRegistryError(404, None, None), ConfigurationError, "check the address"),
        (SchemaRegistryError(429, -1, "slow down"), TransientError, "slow down"),
        (SchemaRegistryError(503, -1, "starting"), TransientError, "starting"),
        (httpx2.ConnectError("refused"), TransientError, "GAME_EVENTS_SCHEMA_REGISTRY_URL"),
    ],
)
def test_errors_say_what_to_do_and_whether_to_retry(error, expected, says):
    with pytest.raises(expected, match=says):
        register_versions(FailingRegistry(error), SETTINGS, (1,))
