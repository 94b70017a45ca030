"""`game-events produce`."""

import time

import pytest

from game_events.plugins.local.producer.produce import Manifest


def test_it_says_what_was_sent_and_adds_it_to_the_manifest(cli, environment, tmp_path):
    manifest = tmp_path / "sent.json"
    options = ("--games", "rummy,uno", "--records", "5", "--manifest", str(manifest), "--json")
    first = cli("produce", *options, "--poison-share", "0.5")
    assert first.code == 0
    body = first.result
    assert (body["topic"], body["games"], body["decodable"]) == (environment.kafka_topic, ["rummy", "uno"], 20)
    assert body["records"] == 20 + sum(body["poison"].values()) > 20
    assert list(body["schema_ids"]) == ["1", "2"]
    held = Manifest.load(manifest)
    assert (held.records_total, held.decodable) == (body["records"], 20)

    began = time.monotonic()
    second = cli("produce", *options, "--seed", "1", "--versions", "2,3", "--interleaving", "2,2,3", "--rate", "25")
    assert second.code == 0
    assert time.monotonic() - began >= 20 / 25
    assert list(second.result["schema_ids"]) == ["2", "3"]
    assert Manifest.load(manifest).records_total == body["records"] + 20

    other = f"{environment.kafka_topic}_2"
    bulk = cli("produce", "--bulk", "50", "--games", "3", "--hot-share", "0.5", "--topic", other, "--json")
    assert (bulk.code, bulk.result["topic"]) == (0, other)
    assert (bulk.result["records"], bulk.result["games"]) == (50, ["game_0001", "game_0002", "game_0003"])
    assert "50 records to topic" in bulk.err


@pytest.mark.parametrize("bulk", [(), ("--bulk", "50")])
@pytest.mark.usefixtures("environment")
def test_it_sends_what_the_settings_describe(cli, monkeypatch, tmp_path, bulk):
    monkeypatch.setenv("GAME_EVENTS_PRODUCER", '{"entities": ["oslo", "lyon"], "keys_per_entity": 3}')
    assert cli("produce", "--manifest", str(tmp_path / "sent.json"), *bulk).code == 0
    sent = Manifest.load(tmp_path / "sent.json").truth
    assert {game: len(gamers) for game, gamers in sent.items()} == {"oslo": 3, "lyon": 3}


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("what", ["broker", "registry"])
def test_a_server_that_does_not_answer_is_named_with_the_setting(cli, environment, monkeypatch, what):
    assert environment.kafka_topic
    key, value = {
        "broker": ("GAME_EVENTS_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9"),
        "registry": ("GAME_EVENTS_SCHEMA_REGISTRY_URL", "http://127.0.0.1:9"),
    }[what]
    monkeypatch.setenv(key, value)
    found = cli("produce", "--records", "1", "--json")
    assert (found.code, found.result["success"]) == (1, False)
    # librdkafka's threads write to stderr, too, and not only those of this client.
    (said,) = (line for line in found.err.splitlines() if line.startswith("error: "))
    assert key in said
    assert value.removeprefix("http://") in said
    assert "Traceback" not in found.err
