"""Jobs by name, and what is said where there is none."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from labassist import content
from labassist.errors import InputError
from labassist.runs.jobs import list_jobs, load_job, resolve
from labassist.workspace import Workspace

pytestmark = pytest.mark.ci

CONFIG = """
steps = 100
[optim]
lr = 1e-3
[profiles.tiny]
steps = 5
"""


@pytest.fixture
def lab(tmp_path: Path) -> Workspace:
    folder = tmp_path / "labs" / "01-loop"
    folder.mkdir(parents=True)
    (tmp_path / "ledger").mkdir()
    (folder / "jobs.toml").write_text(
        '[train]\nscript = "train.py"\nconfig = "train.toml"\nsummary = "train it"\ndefault_profile = "laptop"\n'
        '[evaluate]\nscript = "train.py"\nconfig = "train.toml"\n'
    )
    (folder / "train.py").write_text("print('hello')\n")
    (folder / "train.toml").write_text(CONFIG)
    return Workspace(tmp_path)


def rewrite(lab: Workspace, name: str, text: str) -> None:
    (lab.labs / "01-loop" / name).write_text(text)


def test_load(lab: Workspace) -> None:
    job = load_job(lab, "01-loop/train")
    assert job.name == "01-loop/train"
    assert job.script == lab.labs / "01-loop" / "train.py"
    assert job.config_file == lab.labs / "01-loop" / "train.toml"
    assert job.summary == "train it"
    assert job.profiles == ["laptop", "tiny"]
    assert list_jobs(lab) == ["01-loop/train", "01-loop/evaluate"]


def test_resolve(lab: Workspace, tmp_path: Path) -> None:
    job = load_job(lab, "01-loop/train")
    override = tmp_path / "mine.toml"
    override.write_text("steps = 6\noptim.lr = 2\n")
    assert resolve(job).flat == {"steps": 100, "optim.lr": 1e-3}
    assert resolve(job).profile == "laptop"
    assert resolve(job, "tiny").flat["steps"] == 5
    assert resolve(job, "tiny", override).nested == {"steps": 6, "optim": {"lr": 2.0}}
    assert resolve(job, "tiny", override, ["steps=7"]).flat["steps"] == 7


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("01-lop/train", "no lab '01-lop' here, did you mean 01-loop?; labs here: 01-loop"),
        ("nothing", "no lab 'nothing' here; labs here: 01-loop"),
        ("01-loop", "is a lab, not a job; jobs here: 01-loop/train, 01-loop/evaluate"),
        ("01-loop/trian", "no job 'trian' in this lab, did you mean train?"),
        ("01-loop/", "no job ''"),
        ("../x/train", "no lab '..'"),
        ("01-loop/../train", "no job '../train'"),
        ("", "no lab ''"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(lab: Workspace, name: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        load_job(lab, name)
    assert says in str(caught.value)


def test_unknown_profile_lists_those_there(lab: Workspace) -> None:
    with pytest.raises(
        InputError, match=r"no profile 'tinny', did you mean tiny\?; profiles here: laptop, tiny"
    ):
        resolve(load_job(lab, "01-loop/train"), "tinny")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[train]\nscript = \n", "labs/01-loop/jobs.toml:2: not valid TOML"),
        ('[train]\nscript = "train.py"\n', "config is missing"),
        ('[train]\nscrpt = "train.py"\n', "unknown key 'scrpt', did you mean script?"),
        ("[train]\nscript = 3\n", "script must be text"),
        ('script = "train.py"\n', "'script' stands outside a job's table"),
        ('["a/b"]\nscript = "train.py"\n', "cannot name a job"),
        ('[train]\nscript = "no.py"\nconfig = "train.toml"\n', "script 'no.py' is no file of this lab"),
        (
            '[train]\nscript = "../../x.py"\nconfig = "train.toml"\n',
            "script '../../x.py' is no file of this lab",
        ),
    ],
)
def test_a_faulty_jobs_file_is_refused_in_one_line(lab: Workspace, text: str, says: str) -> None:
    (lab.root / "x.py").write_text("")
    rewrite(lab, "jobs.toml", text)
    with pytest.raises(InputError) as caught:
        load_job(lab, "01-loop/train")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_config_file_is_checked_like_the_rest(lab: Workspace, tmp_path: Path) -> None:
    job = load_job(lab, "01-loop/train")
    override = tmp_path / "mine.toml"
    override.write_text("stepz = 6\n")
    with pytest.raises(InputError, match=r"mine\.toml: unknown key 'stepz', did you mean steps"):
        resolve(job, config_file=override)
    override.write_text("steps = 'six'\n")
    with pytest.raises(InputError, match=r"mine\.toml: steps: 'six' is not a whole number"):
        resolve(job, config_file=override)
    override.write_text("[profiles.tiny]\nsteps = 6\n")
    with pytest.raises(InputError, match="cannot be overridden"):
        resolve(job, config_file=override)
    with pytest.raises(InputError, match="no such file"):
        resolve(job, config_file=tmp_path / "none.toml")


def test_every_job_of_the_course_loads_and_has_a_tiny_profile() -> None:
    course = Workspace(content.root())
    jobs = list_jobs(course)
    assert "01-first-loop/train" in jobs
    for name in jobs:
        job = load_job(course, name)
        assert job.summary, name
        for profile in job.profiles:
            resolve(job, profile)
        assert "tiny" in job.profiles, name


@pytest.mark.slow
def test_the_new_lab_template_is_a_job_that_can_be_recorded_and_replayed(workspace: Workspace) -> None:
    shutil.copytree(workspace.root / "templates" / "new-lab", workspace.labs / "my-lab")

    def labassist(*words: str) -> str:
        command = [sys.executable, "-m", "labassist", *words, "--json"]
        result = subprocess.run(command, cwd=workspace.root, capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stderr
        return result.stdout

    labassist("run", "my-lab/train", "--profile", "tiny")
    record = json.loads(labassist("show", "@last"))
    assert (record["state"], record["step"], record["config"]["steps"]) == ("finished", 20, 20)
    assert json.loads(labassist("replay", "@last"))["verdict"] == "BITWISE"
