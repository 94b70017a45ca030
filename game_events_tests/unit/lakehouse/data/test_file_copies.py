"""Copies of data files: links on a local disk, with the statistics of what they were copied from."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest

from game_events.lakehouse.data.staging import copied_name, copy_file, name_of_copy, staged
from game_events.lakehouse.tables import Lakehouse

ROWS = pa.table({"gamer_id": ["a", "b"], "session_count": [1, 2]})


@pytest.fixture
def lakehouse(tmp_path):
    return Lakehouse(str(tmp_path), person="gamer_id")


def test_a_copy_on_a_local_disk_is_a_link_and_on_one_without_links_a_file_of_its_own(lakehouse, monkeypatch):
    source, to = lakehouse.gold("uno"), lakehouse.table("copies")
    (file,) = staged(source, ROWS)
    original = Path(source.uri, file.path)
    linked = copy_file(lakehouse, source, file.path, to, name_of_copy(file.path, "game_name=uno"))
    assert Path(to.uri, linked.path).samefile(original)

    def refused(*_):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)
    copied = copy_file(lakehouse, source, file.path, to, name_of_copy(file.path, "game_name=uno"))
    assert not Path(to.uri, copied.path).samefile(original)
    assert Path(to.uri, copied.path).read_bytes() == original.read_bytes()
    assert copied_name(linked.path) == copied_name(copied.path) == file.path


def test_a_copy_has_the_statistics_of_its_file_without_a_value_of_the_data_subject(lakehouse):
    source = lakehouse.gold("uno")
    (file,) = staged(source, ROWS)
    copied = copy_file(lakehouse, source, file.path, lakehouse.table("copies"), name_of_copy(file.path, "game_name=uno"))
    assert (copied.stats, copied.rows, copied.size) == (file.stats, file.rows, file.size)
    assert '"maxValues": {"session_count": 2}' in copied.stats
