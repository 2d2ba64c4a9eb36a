"""Files are whole or not there, and names stay in their folder."""

import os
import stat

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvgym.errors import KVGymError
from kvgym.files import LONGEST, plain_name, remove_left, whole_file, write_text


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, OSError(28, "No space left on device")])
def test_what_was_there_stays_until_the_new_file_is_whole(tmp_path, error):
    path = tmp_path / "a.json"
    write_text(path, "old")
    expected = KVGymError if isinstance(error, OSError) else error

    def write():
        with whole_file(path) as place:
            place.write_text("half")
            assert path.read_text() == "old"
            assert place.suffix == ".json"
            raise error

    with pytest.raises(expected):
        write()
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
    assert path.read_text() == "old"


def test_what_is_no_plain_file_is_written_to_and_links_are_followed(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with whole_file(tmp_path / "pipe") as place:
        assert place == tmp_path / "pipe"
    os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    (tmp_path / "link").symlink_to(tmp_path / "there")
    write_text(tmp_path / "link", "ä\n")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there").read_bytes() == b"\xc3\xa4\n"


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(KVGymError, match=r"none/x\.csv: cannot be written: No such file or directory"):
        write_text(tmp_path / "none" / "x.csv", "")
    (tmp_path / "folder").mkdir()
    with pytest.raises(KVGymError, match="folder: cannot be written: Is a directory"):
        write_text(tmp_path / "folder", "")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_what_a_killed_process_left_is_removed(tmp_path):
    for name in (".a.123.tmp.csv", ".lock", "a.csv"):
        (tmp_path / name).touch()
    remove_left(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {".lock", "a.csv"}


@given(st.text())
@example("../../etc/passwd")
@example("..")
@example("")
@example("a\0b/\\:*")
@example("ä" * 500)
def test_no_text_names_anything_outside_its_folder(text):
    name = plain_name(text)
    assert name
    assert "/" not in name
    assert "\\" not in name
    assert "\0" not in name
    assert not name.startswith(".")
    assert len(name.encode()) <= LONGEST
    assert plain_name(name) == name


def test_long_names_differ_where_their_texts_do():
    assert plain_name("x" * 300) != plain_name("x" * 299 + "y")
    assert plain_name("mc_sf:protection=0.1") == "mc_sf-protection-0.1"
