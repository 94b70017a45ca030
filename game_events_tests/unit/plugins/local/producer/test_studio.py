"""The events of the example `studio`: the same for a seed, of all habits, and counted once."""

from collections import Counter
from pathlib import Path

from game_events.plugins.local.demo import examples
from game_events.plugins.local.producer.studio import CLUSTERS, FRAMED_TYPES, GAMES, SESSION, Sent, _classes, events

PROTO = Path(examples()["studio"]) / "studio.proto"


def test_the_proto_has_thirty_types_and_the_one_of_the_sessions():
    names = [made.DESCRIPTOR.full_name for made in _classes(PROTO.read_text(), PROTO.name)]
    assert len(set(names)) == len(names) == FRAMED_TYPES + 1
    assert names[-1] == SESSION


def test_a_seed_gives_the_same_events_of_all_topics_types_and_names_of_games():
    made = list(events(2_000, seed=1))
    assert made == list(events(2_000, seed=1)) != list(events(2_000, seed=2))
    assert {event.topic for event in made} == CLUSTERS.keys()
    assert {event.kind for event in made if event.topic == "events"} == set(range(FRAMED_TYPES))
    assert {event.name for event in made} == {name for names in GAMES.values() for name in names}
    assert len({event.event_id for event in made}) == 2_000


def test_gold_counts_an_event_once_and_keeps_its_first_and_last_time():
    made = list(events(500, seed=3))
    sent = Sent()
    for event in made:
        sent.count(event)
    wanted = Counter((event.game, event.player) for event in made)
    found = {(game, player): truth for game, players in sent.truth.items() for player, truth in players.items()}
    assert {key: truth.session_count for key, truth in found.items()} == wanted
    for (game, player), truth in found.items():
        times = [event.time for event in made if (event.game, event.player) == (game, player)]
        assert (truth.min_timestamp, truth.max_timestamp) == (min(times), max(times))


def test_two_waves_are_one_account():
    first, second, both = Sent(), Sent(), Sent()
    for wave, sent in ((1, first), (2, second)):
        for event in events(300, seed=wave):
            sent.count(event)
            both.count(event)
    first.add(second)
    assert first.truth == both.truth
