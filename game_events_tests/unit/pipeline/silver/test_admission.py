"""Which new names become games."""

from hypothesis import given
from hypothesis import strategies as st

from game_events.config.settings import Settings
from game_events.pipeline.silver.admission import admit


def limits(**overrides):
    return Settings(**({"max_games": 3, "new_game_min_rows": 100, "games": ()} | overrides))


def test_while_there_is_room_the_names_with_most_rows_come_in_first():
    assert admit(limits(), {"a"}, {"x": 1, "y": 50, "z": 2}) == ({"y", "z"}, {"x": 1})


def test_equal_names_come_in_by_alphabet():
    assert admit(limits(), {"a", "b"}, {"z": 1, "y": 1, "x": 1})[0] == {"x"}


def test_past_the_room_enough_rows_or_the_allow_list_let_in():
    known = {"a", "b", "c"}
    assert admit(limits(games=("vip",)), known, {"vip": 1, "big": 100, "small": 99}) == ({"vip", "big"}, {"small": 99})


def test_past_the_last_bound_only_the_allow_list_lets_in_however_many_rows_a_name_has():
    settings = limits(max_games=2, max_games_ever=3)
    flood = {f"fake_{n}": 10_000 + n for n in range(50)}
    admitted, refused = admit(settings, {"a", "b"}, flood)
    assert (admitted, len(refused)) == ({"fake_49"}, 49)
    assert admit(settings, {"a", "b", "c", "d"}, flood)[0] == set()
    assert admit(limits(max_games=2, max_games_ever=3, games=("vip",)), {"a", "b", "c"}, {"vip": 1})[0] == {"vip"}
    assert len(admit(limits(max_games=7, max_games_ever=3), set(), flood)[0]) == 7, "what the owner makes room for is there"


counts = st.dictionaries(st.sampled_from([f"g{i}" for i in range(12)]), st.integers(1, 300), max_size=12)


@given(counts, st.integers(0, 6), st.integers(1, 6), st.integers(1, 200))
def test_a_flood_of_names_never_locks_out_a_game_with_enough_rows(new, known, max_games, enough):
    settings = limits(max_games=max_games, new_game_min_rows=enough)
    admitted, refused = admit(settings, {f"known{i}" for i in range(known)}, new)
    assert admitted | refused.keys() == new.keys()
    assert not admitted & refused.keys()
    assert len(admitted) <= max(0, max_games - known) + sum(rows >= enough for rows in new.values())
    assert all(rows < enough for rows in refused.values())
    assert refused == {name: new[name] for name in refused}
    if refused:
        assert known + len(admitted) >= max_games
