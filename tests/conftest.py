"""Every test runs in a world of its own: no user's git, no user's labassist, one thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from code_repo import git, git_state, tree, write

from labassist.ledger.code import capture
from labassist.ledger.objects import Objects
from labassist.ledger.records import Code
from labassist.ledger.restore import restore
from labassist.serving import place
from labassist.workspace import Workspace, new

# Before anything imports torch: sums over several threads are other sums.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"


@pytest.fixture(autouse=True)
def isolated(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the test an empty HOME with a git identity, and take away what leaks in from the caller."""
    home = tmp_path_factory.mktemp("home")
    (home / ".gitconfig").write_text(
        "[user]\n\tname = Test Learner\n\temail = learner@example.invalid\n[init]\n\tdefaultBranch = main\n"
    )
    for name in list(os.environ):
        if name.startswith(("LABASSIST_", "GIT_", "XDG_", "COV_")):
            monkeypatch.delenv(name)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "PYTHONHASHSEED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / ".gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("TERM", "xterm")
    yield home


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A new workspace in a temporary folder, as `labassist new` makes it."""
    return new(tmp_path / "workspace").workspace


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables with which `labassist serve` takes the stand-in for vLLM."""
    import standin

    return standin.environment(tmp_path_factory.mktemp("engine") / "vllm")


_VLLM_GIVEN = os.environ.get(place.VARIABLE, "")
_VLLM_MADE = place.default_folder()  # of the caller's own home


@pytest.fixture(scope="session")
def vllm() -> dict[str, str]:
    """The variable that names a real vLLM: the caller's, else the one that `labassist setup vllm` makes and keeps."""
    from labassist.serving import setup

    python = _VLLM_GIVEN
    if not python:
        base = setup.base_python(None)
        python = str(
            setup.setup(_VLLM_MADE, base=base, gpu=setup.has_gpu(), upgrade=False, say=print).engine.python
        )
    return {place.VARIABLE: python}


@pytest.fixture(scope="session")
def little_lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with three runs of a small trainer, made once: copy it before changing anything.

    A whole run of 40 steps with a nan at step 7, and a lineage of two: failed at step 33 of 60, then resumed.
    """
    import little

    root = new(tmp_path_factory.mktemp("little") / "lab").workspace.root
    little.record(root, 40, 5, "7")
    little.lineage(root)
    return root


@pytest.fixture
def git_config(isolated: Path) -> Path:
    """The file that git takes for the user's own configuration."""
    return isolated / ".gitconfig"


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small repository with one commit; others may be cloned from a folder."""
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "file")
    top = tmp_path / "repo"
    top.mkdir()
    git(top, "init", "-q")
    write(top, ".gitignore", "ignored/\n*.ign\n")
    write(top, "train.py", "a = 1\nb = 2\nc = 3\n")
    write(top, "run.sh", "#!/bin/sh\n", 0o755)
    write(top, "data/weights.bin", bytes(range(256)) * 8)
    write(top, "old.txt", "to be deleted\n")
    (top / "link").symlink_to("train.py")
    git(top, "add", "-A")
    git(top, "commit", "-q", "-m", "start")
    return top


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects(tmp_path / "objects")


@pytest.fixture
def round_trip(repo: Path, objects: Objects, tmp_path: Path) -> Callable[..., tuple[Code, Path]]:
    """Capture and restore; assert that the repository is as before, and the copy equal but for `absent`."""
    count = 0

    def run(*, absent: tuple[str, ...] = (), limit: int = 1 << 20) -> tuple[Code, Path]:
        nonlocal count
        count += 1
        before = git_state(repo)
        code = capture(repo, objects, f"run-{count}", untracked_limit=limit)
        assert git_state(repo) == before
        into = tmp_path / f"restored-{count}"
        restore(code, objects, repo, into)
        assert git_state(repo) == before
        wanted = {path: entry for path, entry in tree(repo).items() if not path.startswith(absent or "\0")}
        assert tree(into) == wanted
        assert sorted(path.name for path in (repo / ".git/refs/labassist").iterdir()) == [
            f"run-{number}" for number in range(1, count + 1)
        ]
        return code, into

    return run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a CUDA device where there is none."""
    if any(Path("/dev").glob("nvidia[0-9]*")):
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no CUDA device here"))
