"""The installation command in a report names the code that made it."""

import json
import subprocess

import pytest

from kvgym.utils import version

IDENTITY = ["-c", "user.name=a", "-c", "user.email=a@b.c"]


def git(folder, *arguments):
    return subprocess.run(
        ["git", "-C", folder, *IDENTITY, *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def placed(tmp_path, monkeypatch):
    """The module, as if it lay in a folder of its own."""
    (tmp_path / "kvgym" / "utils").mkdir(parents=True)
    (tmp_path / "kvgym" / "utils" / "version.py").touch()
    monkeypatch.setattr(version, "__file__", str(tmp_path / "kvgym" / "utils" / "version.py"))
    return tmp_path


def test_a_checkout_is_named_by_its_commit(placed, monkeypatch):
    git(placed, "init", "-q")
    git(placed, "add", ".")
    git(placed, "commit", "-qm", "first")
    git(placed, "tag", "v9")
    commit = git(placed, "rev-parse", "HEAD")
    assert version.install_command("report") == f'git checkout {commit} && pip install -e ".[report]"'
    (placed / "kvgym" / "utils" / "version.py").write_text("changed")
    assert version.install_command("report") == (
        f'git checkout {commit} && pip install -e ".[report]"  # and changes that are in no commit'
    )
    monkeypatch.setenv("PATH", "")  # no git
    monkeypatch.setattr(version, "_origin", dict)
    assert version.install_command("report") == f'pip install "kvgym[report]=={version.__version__}"'


@pytest.mark.parametrize(
    ("noted", "command"),
    [
        (None, f'pip install "kvgym[x]=={version.__version__}"'),
        (
            {"url": "https://a.example/kvgym", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
            'pip install "kvgym[x] @ git+https://a.example/kvgym@c0ffee"',
        ),
        (
            {"url": "file:///home/me/kvgym", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
            'git checkout c0ffee && pip install ".[x]"',
        ),
        (
            {"url": "file:///home/me/kvgym-1.whl", "archive_info": {}},
            f'pip install ".[x]"  # kvgym {version.__version__}, from a folder or file that names no commit',
        ),
    ],
)
def test_what_was_installed_is_named_by_where_it_came_from(placed, monkeypatch, noted, command):
    class Installed:
        def read_text(self, name):
            assert name == "direct_url.json"
            return noted and json.dumps(noted)

    monkeypatch.setattr("importlib.metadata.distribution", lambda name: Installed())
    assert version.install_command("x") == command
