"""A command's replay: what it finds in its copy, and the cause that it names where the runs differ."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from command import answer, labassist, run_folder
from own_command import RECORDED, own_lab, run  # noqa: F401 - a fixture

from labassist.workspace import new


@pytest.mark.fault
def test_a_curve_that_was_changed_since_is_named_before_any_other_cause(lab: Path) -> None:
    """Else the replay would blame the optimizer for what somebody edited."""
    (lab / "recorded.py").write_text(RECORDED)
    made = run(lab, "--", "python", "recorded.py")
    curve = run_folder(lab, made) / "metrics-rank0.jsonl"
    curve.write_text(curve.read_text().replace('"loss": 0.5', '"loss": 0.4'))
    replayed = answer("replay", made["id"], cwd=lab, status=4)
    assert replayed["first_difference"]["step"] == 2
    assert "is not what was recorded: the bytes that were sealed" in replayed["likely_causes"][0]
    curve.unlink()
    gone = labassist("replay", made["id"], cwd=lab, status=5)
    assert "metrics-rank0.jsonl is not what was recorded: cannot be read" in gone.stderr


TOLD = """\
import os, sys
from labassist import record
order = record.read_order()
config = {"weight_decay": 0.1} if "DECAY" in os.environ else {}
seeds = {"seed": 7, "by": "the script"}
recorder = record.start(order=order, total_steps=4, config=config, seeds=seeds)
for step in range(1, 5):
    recorder.record(step, loss=1 / step - 0.01 * len(config), batch=record.digest([step]))
recorder.finish(4)
"""


def test_a_setting_that_came_from_an_unrecorded_variable_is_named_as_the_cause(lab: Path) -> None:
    (lab / "told.py").write_text(TOLD)
    made = run(lab, "--", "python", "told.py", env={"DECAY": "0.1"})
    assert made["config"] == {"weight_decay": 0.1}
    replayed = answer("replay", made["id"], cwd=lab, status=4)
    cause = replayed["likely_causes"][0]
    assert cause.startswith("the configuration differs: weight_decay 0.1 / -; ") and "variable" in cause
    assert answer("replay", made["id"], cwd=lab, env={"DECAY": "0.1"})["likely_causes"] == []
    shown = labassist("show", made["id"], cwd=lab).stdout
    assert "seeds.by  the script\nseeds.seed  7\n" in shown


@pytest.mark.parametrize(
    ("name", "script", "file"),
    [
        ("reads.py", "open('private.txt')\nopen('read.txt', 'w').write('x')\n", "private.txt"),
        ("reads.sh", "cp private.txt read.txt\n", "private.txt"),
    ],
)
def test_a_replay_that_failed_says_so_and_names_the_file_that_git_ignores(
    lab: Path, name: str, script: str, file: str
) -> None:
    (lab / name).write_text(script)
    (lab / "private.txt").write_text("data")
    (lab / ".git" / "info").mkdir(exist_ok=True)
    (lab / ".git" / "info" / "exclude").write_text("private.txt\n")
    made = run(lab, "--out", "read.txt", "--", "python" if name.endswith("py") else "sh", name)
    replayed = answer("replay", made["id"], cwd=lab, status=4)
    failed, mend = replayed["likely_causes"][:2]
    assert failed.startswith("it failed in the replay: exit status 1; its last line: ")
    assert "No such file or directory" in failed
    assert mend.startswith(f"{file} is not in the replay's copy") and "read_order().input" in mend


FORGETS = """\
import os
from labassist import record
order = record.read_order()
data = order.input("data", "data.txt").read_text()
recorder = record.start(order=order, total_steps=6)
DRAWN
for step in range(recorder.step + 1, 7):
    recorder.record(step, loss=drawn / step, batch=record.digest([step]))
    if step == 2:
        recorder.save(step, {"model": {"drawn": drawn}, "optimizer": {}})
    if step == 4 and "CRASH" in os.environ:
        recorder.wait()
        raise SystemExit(1)
recorder.finish(6)
"""


@pytest.mark.slow
@pytest.mark.ci
def test_what_a_resume_did_not_bring_back_is_named_by_a_replay_and_other_code_or_data_by_the_resume(
    tmp_path: Path,
) -> None:
    root = new(tmp_path / "lab").workspace.root
    (root / ".gitignore").write_text((root / ".gitignore").read_text() + "data.txt\n")
    (root / "data.txt").write_text("words")
    (root / "forgets.py").write_text(FORGETS.replace("DRAWN", "drawn = 2.0 if recorder.resume else 1.0"))
    failed = run(root, "--", "python", "forgets.py", status=1, env={"CRASH": "1"})
    labassist("resume", failed["id"], cwd=root)
    cause = answer("replay", "@last", cwd=root, status=4)["likely_causes"][0]
    assert cause.startswith("the resume after step 2: loss differs at the first resumed step: ")
    (root / "data.txt").write_text("other words")
    labassist("resume", failed["id"], cwd=root)
    (warning,) = answer("show", "@last", cwd=root)["warnings"]
    assert warning.startswith(f"it goes on with other data than run {failed['id']}: data; ")
    assert "its segments differ in data" in labassist("replay", "@last", cwd=root, status=2).stderr
    (root / "more.py").write_text("")
    said = labassist("resume", failed["id"], cwd=root).stderr
    assert "note: the code has changed since that run (more.py): " in said and ".gitignore" in said


GIT = """\
set -e
git rev-parse --abbrev-ref HEAD > asked.txt
git rev-parse HEAD >> asked.txt
git status --short >> asked.txt
cd "$(git rev-parse --show-toplevel)"
cat tracked.txt >> asked.txt
echo more >> tracked.txt
git commit -q -a -m "by the script"
git checkout -q -b trial
echo unsaved >> tracked.txt
git stash -q
git log --format=%s -1 >> asked.txt
"""


def test_what_a_script_does_with_git_happens_in_the_copy_and_not_in_the_repository(lab: Path) -> None:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=lab, check=True, capture_output=True, text=True).stdout

    home = git("branch", "--show-current")
    (lab / "git.sh").write_text(GIT)
    (lab / "tracked.txt").write_text("tracked\n")
    (lab / ".gitignore").write_text((lab / ".gitignore").read_text() + "asked.txt\n")
    for name, value in (("user.name", "Someone"), ("user.email", "someone@example.org")):
        git("config", name, value)
    git("add", "-A")
    git("commit", "-q", "-m", "before")
    (lab / "tracked.txt").write_text("changed\n")
    made = run(lab, "--out", "asked.txt", "--", "sh", "git.sh")
    assert made["exit"] == 0
    git("checkout", "-q", home.strip())
    (lab / "tracked.txt").write_text("staged\n")
    git("add", "tracked.txt")
    (lab / "tracked.txt").write_text("work\n")

    def mine() -> list[str]:
        words = (
            ["log", "--all", "--oneline"],
            ["branch", "-a"],
            ["diff", "HEAD"],
            ["status", "-s"],
            ["stash", "list"],
        )
        return [git(*one) for one in words]

    before = mine()
    assert answer("replay", made["id"], cwd=lab)["verdict"] == "BITWISE"
    assert mine() == before


RATES = """\
import os, sys
from labassist import record
recorder = record.start(total_steps=2)
for step in range(1, 3):
    recorder.record(step, loss=float(sys.argv[1]) / step + 1e-9 * ("scratch" in os.getcwd()))
recorder.finish(2)
"""


@pytest.mark.slow
@pytest.mark.ci
def test_runs_of_other_arguments_are_no_repeats_that_bound_the_noise_of_a_replay(lab: Path) -> None:
    (lab / "rates.py").write_text(RATES)
    for rate in ("1.0", "2.0", "3.0", "4.0"):
        made = run(lab, "--", "python", "rates.py", rate)
    assert answer("replay", made["id"], cwd=lab, status=4)["verdict"] == "DIVERGED"
