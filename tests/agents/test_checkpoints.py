"""Checkpoints are whole, and training removes and replaces only its own files."""

import pytest

from kvgym.agents.runs.checkpoints import checkpoints, latest_checkpoint, save_checkpoint
from kvgym.agents.runs.folder import check_free
from kvgym.errors import ConfigError
from kvgym.utils import files
from kvgym.utils.files import write_text


def test_partial_files_are_never_read(tmp_path):
    def fails(place):
        (place / "model.zip").write_text("half")
        raise KeyboardInterrupt

    save_checkpoint(tmp_path, 10, lambda place: (place / "model.zip").write_text("whole"), {"steps": 10}, 2)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, 20, fails, {"steps": 20}, 2)
    assert latest_checkpoint(tmp_path)[1] == {"steps": 10}
    for step in (20, 30):
        save_checkpoint(tmp_path, step, lambda place: None, {"steps": step}, 2)
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["step-000000000020", "step-000000000030"]
    path = tmp_path / "text"
    write_text(path, "one\n")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "one\n"
    assert not list(tmp_path.glob(".*"))


def test_only_what_training_has_written_is_removed(tmp_path):
    folder = tmp_path / "checkpoints"
    for name in ("step-5", "step-0000000000001", ".npmrc.tmp", ".env.tmp"):
        (folder / name).mkdir(parents=True)
        (folder / name / "state.json").write_text("{}")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "state.json").write_text("{}")
    (folder / "step-000000000001").symlink_to(tmp_path / "linked")
    (folder / files.temporary_name()).symlink_to(tmp_path / "linked")
    (folder / files.temporary_name()).mkdir()
    before = {
        path.name for path in folder.iterdir() if path.is_symlink() or not files.is_temporary(path.name)
    }
    for step in (2, 3):
        save_checkpoint(folder, step, lambda place: None, {"steps": step}, keep=1)
    assert {path.name for path in folder.iterdir()} == before | {"step-000000000003"}
    assert (tmp_path / "linked" / "state.json").exists()
    assert [path.name for path in checkpoints(folder)] == ["step-000000000003"]


@pytest.mark.parametrize(
    "name", ["run.json", "curve.csv", "best.npz", "final.npz", "model.zip", "checkpoints"]
)
def test_a_folder_with_other_files_is_an_error(tmp_path, name):
    check_free(tmp_path)
    (tmp_path / name).symlink_to("nothing")
    with pytest.raises(
        ConfigError, match=f"holds {name}, which training would replace; choose another folder"
    ):
        check_free(tmp_path)
