"""Atomic writes, safe names, and locks on folders."""

import os
import stat

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvgym.agents.runs.progress import TrainingLog
from kvgym.errors import ConfigError, KVGymError
from kvgym.experiments.journal import Journal
from kvgym.utils import files
from kvgym.utils.execution.threads import call_in_thread
from kvgym.utils.files import LOCK, LONGEST, alone_in, plain_name, remove_left, whole_file, write_text


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, OSError(28, "No space left on device")])
def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path, error):
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


def test_a_pipe_is_written_directly(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with whole_file(tmp_path / "pipe") as place:
        assert place == tmp_path / "pipe"
    os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_device_is_written_directly():
    for name in ("/dev/stdout", "/dev/null", "/proc/self/fd/1"):
        with whole_file(name) as place:
            assert str(place) == name


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_replaced_and_its_target_stays(tmp_path, there):
    target = tmp_path / "precious"
    if there:
        target.write_text("mine")
    (tmp_path / "link").symlink_to(target)
    write_text(tmp_path / "link", "ä\n")
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "link").read_bytes() == b"\xc3\xa4\n"
    assert not there or target.read_text() == "mine"
    assert target.exists() == there


def test_temporary_names_are_unique_and_no_existing_file_is_opened(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    with whole_file(path) as first, whole_file(path) as second:
        assert first != second
        assert all(place.name.startswith(".kvgym-") and place.suffix == ".csv" for place in (first, second))
    (tmp_path / "precious").write_text("mine")
    (tmp_path / files.temporary_name()).symlink_to("precious")
    (taken,) = (p.name for p in tmp_path.iterdir() if p.is_symlink())
    monkeypatch.setattr(files, "temporary_name", lambda suffix: taken)
    with pytest.raises(KVGymError, match="File exists"):
        write_text(path, "")
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_links_and_pipes_are_not_appended_to(tmp_path, kind):
    (tmp_path / "precious").write_text("mine")
    for name in (LOCK, "unfinished.jsonl", "train.log"):
        if kind == "link":
            (tmp_path / name).symlink_to("precious")
        else:
            os.mkfifo(tmp_path / name)
    with (
        pytest.raises(ConfigError, match=f"{LOCK}: cannot be written: it is a symbolic link"),
        alone_in(tmp_path),
    ):
        pass
    (tmp_path / LOCK).unlink()
    with pytest.raises(ConfigError, match=r"unfinished\.jsonl: cannot be written: it is a symbolic link"):
        Journal(tmp_path, "unfinished.jsonl")
    with pytest.raises(OSError, match="symbolic link"):
        TrainingLog(tmp_path, 10, "steps", "ttft_mean").evaluated(1, 2.0)
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_lock_is_lent_to_one_call_at_a_time_in_the_same_thread(tmp_path):
    with alone_in(tmp_path, lend=True):
        for _ in range(2):
            with alone_in(tmp_path), pytest.raises(ConfigError, match="works on it"):
                alone_in(tmp_path).__enter__()
            assert (tmp_path / LOCK).exists()
        with pytest.raises(ConfigError, match="works on it"):
            call_in_thread(lambda: alone_in(tmp_path).__enter__())
    assert not list(tmp_path.iterdir())
    with alone_in(tmp_path), pytest.raises(ConfigError, match="works on it"):
        alone_in(tmp_path).__enter__()


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(KVGymError, match=r"none/x\.csv: cannot be written: No such file or directory"):
        write_text(tmp_path / "none" / "x.csv", "")
    (tmp_path / "folder").mkdir()
    with pytest.raises(KVGymError, match="folder: cannot be written: Is a directory"):
        write_text(tmp_path / "folder", "")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_only_temporary_files_of_killed_processes_are_removed(tmp_path):
    others = {
        ".env.tmpl", ".npmrc.tmp", ".a.123.tmp.csv", ".probe", ".lock", "a.csv", ".kvgym-results.json", LOCK,
        ".kvgym-notes.tmp", f"{files.temporary_name()}.a.b", f"x{files.temporary_name()}",
    }  # fmt: skip
    for name in (*others, files.temporary_name(), files.temporary_name(".csv"), files.temporary_name(".ä")):
        (tmp_path / name).touch()
    (tmp_path / (link := files.temporary_name())).symlink_to("a.csv")
    (tmp_path / (folder := files.temporary_name())).mkdir()
    remove_left(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {*others, link, folder}


@given(st.text())
@example("../../etc/passwd")
@example("..")
@example("")
@example("a\0b/\\:*")
@example("ä" * 500)
def test_names_never_lead_out_of_their_folder(text):
    name = plain_name(text)
    assert name
    assert "/" not in name
    assert "\\" not in name
    assert "\0" not in name
    assert not name.startswith(".")
    assert len(name.encode()) <= LONGEST
    assert plain_name(name) == name


def test_long_names_differ_if_their_texts_do():
    assert plain_name("x" * 300) != plain_name("x" * 299 + "y")
    assert plain_name("mc_sf:protection=0.1") == "mc_sf-protection-0.1"
