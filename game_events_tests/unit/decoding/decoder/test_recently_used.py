"""What was not used for longest is dropped first, once there are too many bytes."""

from game_events.decoding.decoder import RecentlyUsed


def test_the_oldest_are_dropped_until_the_bytes_suffice():
    used = RecentlyUsed[str](10)
    assert used.use("a", 4) == []
    assert used.use("b", 4) == []
    assert used.use("a", 4) == []
    assert used.use("c", 4) == ["b"]
    assert used.use("d", 10) == ["a", "c"]


def test_what_is_used_now_is_never_dropped_and_its_size_may_change():
    used = RecentlyUsed[str](10)
    assert used.use("a", 50) == []
    assert used.use("a", 2) == []
    assert used.use("b", 8) == []
    assert used.use("b", 9) == ["a"]
