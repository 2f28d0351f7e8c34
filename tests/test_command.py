"""`run [--out PATH] -- CMD`: any program is recorded whole and replayed by what it makes."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command import answer, labassist, run_folder

from labassist.cli.ledger import summary
from labassist.errors import LedgerError
from labassist.ledger.audit import audit
from labassist.ledger.code import HASH_LIMIT
from labassist.ledger.store import Ledger
from labassist.runs.command import job_name, plan_command
from labassist.runs.launch import launch
from labassist.workspace import new

MAKE = """\
import os, sys
os.makedirs("made/deep", exist_ok=True)
open("made/one.txt", "w").write("one " + " ".join(sys.argv[1:]) + "\\n")
open("made/deep/two.bin", "wb").write(bytes(range(256)))
sys.exit(int(os.environ.get("STATUS", "0")))
"""
RECORDED = """\
from labassist import record
order = record.read_order()
recorder = record.start(order=order, total_steps=4)
for step in range(1, 5):
    recorder.record(step, loss=1 / step, batch=record.digest([step]))
recorder.finish(4)
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = new(tmp_path_factory.mktemp("command") / "lab").workspace.root
    (root / "make.py").write_text(MAKE)
    return root


def run(lab: Path, *words: str, status: int = 0, env: dict[str, str] | None = None) -> Any:
    return json.loads(labassist("run", "--json", *words, cwd=lab, status=status, env=env).stdout)


def test_outputs_are_hashed_a_folder_as_one_and_replayed(lab: Path) -> None:
    made = run(lab, "--out", "made", "--out", "made/one.txt", "--", "python", "make.py", "a b")
    assert (made["state"], made["exit"], made["job"]) == ("finished", 0, "make.py")
    assert made["argv"] == ["python", "make.py", "a b"]
    folder, file = made["outputs"]
    assert (folder["path"], folder["bytes"]) == ("made", 256 + 8)
    assert file["path"] == "made/one.txt" and file["sha256"]
    replayed = answer("replay", made["id"], cwd=lab)
    assert (replayed["verdict"], replayed["compared"]["tensors"]) == ("BITWISE", 2)


def test_what_a_command_makes_is_no_part_of_its_code(lab: Path) -> None:
    first, second = (run(lab, "--out", "made", "--", "python", "make.py") for _ in range(2))
    assert (lab / "made" / "one.txt").exists()
    assert first["code"]["digest"] == second["code"]["digest"]


def test_an_output_that_changes_diverges_and_names_it(lab: Path) -> None:
    (lab / "dice.py").write_text("import os\nopen('dice.bin', 'wb').write(os.urandom(8))\n")
    made = run(lab, "--out", "dice.bin", "--", "python", "dice.py")
    replayed = answer("replay", made["id"], cwd=lab, status=4)
    assert (replayed["verdict"], replayed["first_difference"]) == ("DIVERGED", {"path": "dice.bin"})


@pytest.mark.fault
def test_any_output_lets_the_run_be_closed_and_what_is_lacking_is_said(lab: Path) -> None:
    """A file name that is not UTF-8, an output that nobody can read, one that was not made."""
    (lab / "odd.py").write_text(
        "import os\nos.makedirs('odd')\nopen(b'odd/\\xff', 'w').close()\n"
        "os.symlink('/proc/self/mem', 'unreadable')\n"
    )
    words = ("--out", "odd", "--out", "unreadable", "--out", "nothing", "--", "python", "odd.py")
    made = run(lab, *words)
    shutil.rmtree(lab / "odd")
    (lab / "unreadable").unlink()
    assert (made["state"], made["exit"]) == ("finished", 0)
    assert [bool(out["sha256"]) for out in made["outputs"]] == [True, False, False]
    assert [line.partition(" was declared")[0] for line in made["warnings"]] == ["unreadable", "nothing"]
    assert "cannot be read" in made["warnings"][0] and "was not made" in made["warnings"][1]


def test_without_outputs_and_recorder_there_is_nothing_to_compare(lab: Path) -> None:
    made = run(lab, "--", "python", "make.py")
    replayed = answer("replay", made["id"], cwd=lab, status=5)
    assert replayed["verdict"] == "INCOMPLETE"
    assert "nothing to compare" in replayed["likely_causes"][0]


def test_a_command_with_a_recorder_is_replayed_by_its_curve(lab: Path) -> None:
    (lab / "recorded.py").write_text(RECORDED)
    made = run(lab, "--", "python", "recorded.py")
    assert (made["step"], made["total_steps"]) == (4, 4)
    replayed = answer("replay", made["id"], cwd=lab)
    assert (replayed["verdict"], replayed["compared"]) == (
        "BITWISE",
        {"steps": 4, "series": 2, "tensors": 0},
    )
    refused = labassist("resume", made["id"], cwd=lab, status=2)
    assert "finished all of its 4 steps" in refused.stderr and "--set" not in refused.stderr


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


def test_exit_status_and_signal_are_kept(lab: Path) -> None:
    failed = run(lab, "--out", "made", "--", "python", "make.py", status=3, env={"STATUS": "3"})
    assert (failed["state"], failed["exit"]) == ("failed", 3)
    replayed = answer("replay", failed["id"], cwd=lab, status=4)
    assert replayed["first_difference"] == {"exit": [3, 0], "signal": [None, None]}
    killed = run(lab, "--", "sh", "-c", "kill -9 $$", status=137)
    assert (killed["state"], killed["signal"]) == ("failed", signal.SIGKILL)
    assert "exit" not in killed
    refused = labassist("resume", killed["id"], cwd=lab, status=2)
    assert "no complete checkpoint" in refused.stderr


def test_a_script_that_git_ignores_is_kept_and_replayed_as_it_was(lab: Path) -> None:
    (lab / ".gitignore").write_text((lab / ".gitignore").read_text() + "private/\n")
    (lab / "private").mkdir()
    script = lab / "private" / "mine.py"
    script.write_text("open('mine.txt', 'w').write('as it ran')\n")
    made = run(lab, "--out", "mine.txt", "--", "python", str(script))
    assert made["argv"] == ["python", "private/mine.py"]  # another place, the same meaning
    script.write_text("open('mine.txt', 'w').write('changed since')\n")
    assert answer("replay", made["id"], cwd=lab)["verdict"] == "BITWISE"


def test_a_script_outside_the_workspace_is_replayed_from_the_record(lab: Path, tmp_path: Path) -> None:
    script = tmp_path / "elsewhere.py"
    script.write_text("open('other.txt', 'w').write('as it ran')\n")
    made = run(lab, "--out", "other.txt", "--", "python", str(script))
    script.write_text("open('other.txt', 'w').write('changed since')\n")
    assert answer("replay", made["id"], cwd=lab)["verdict"] == "BITWISE"


@pytest.mark.fault
def test_a_secret_on_the_command_line_is_never_stored_and_refilled(lab: Path) -> None:
    secret = "hf_" + "Q7vR2mK9xT4wL8nB3cJ6" + "pY5sD1gH0z"
    (lab / "uses.py").write_text(
        "import hashlib, sys\nopen('uses.txt', 'w').write(hashlib.sha256(sys.argv[2].encode()).hexdigest())\n"
    )
    words = ("--out", "uses.txt", "--", "python", "uses.py", "--token", secret)
    made = run(lab, *words, env={"HF_TOKEN": secret})
    assert made["argv"] == ["python", "uses.py", "--token", "${HF_TOKEN}"]
    for path in (lab / "ledger").rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path
    missing = labassist("replay", made["id"], cwd=lab, status=2)
    assert "HF_TOKEN" in missing.stderr
    assert answer("replay", made["id"], cwd=lab, env={"HF_TOKEN": secret})["verdict"] == "BITWISE"


def test_a_bundle_whose_log_holds_a_secret_says_so(lab: Path, tmp_path: Path) -> None:
    secret = "Q7vR2mK9xT4w"
    script = "import os; print('it is', os.environ['DB_PASSWORD'])"
    made = run(lab, "--", "python", "-c", script, env={"DB_PASSWORD": secret})
    words = ("export", made["id"], "--to", "bundle", "-o", str(tmp_path / "run.tar"))
    done = labassist(*words, cwd=lab, env={"DB_PASSWORD": secret})
    assert f"log.txt of run {made['id']} has secrets in it (DB_PASSWORD)" in done.stderr
    assert secret not in done.stderr
    assert "log.txt" not in labassist(*words, cwd=lab).stderr


@pytest.mark.fault
def test_a_clock_that_was_set_back_is_said_where_it_moves_last(tmp_path: Path) -> None:
    root = new(tmp_path / "lab").workspace.root
    first = run(root, "--", "true")
    assert "warnings" not in first
    with Ledger.open(root / "ledger") as ledger:
        ledger.change("note", first["id"], lambda one: {**one, "created": "2999-01-01T00:00:00.000Z"})
    second = run(root, "--", "true")
    (warning,) = second["warnings"]
    assert "began at 2999-01-01T00:00:00.000Z" in warning and "@last is that run and not this one" in warning
    assert answer("show", "@last", cwd=root)["id"] == first["id"]


def test_outside_git_the_script_is_stored_and_replayed(tmp_path: Path) -> None:
    root = tmp_path / "plain"
    for name in ("labs", "ledger"):
        (root / name).mkdir(parents=True)
    (root / "make.py").write_text(MAKE)
    env = {"GIT_CEILING_DIRECTORIES": str(tmp_path)}
    made = run(root, "--out", "made", "--", "python", "make.py", env=env)
    assert made["code"]["vcs"] == "none"
    (root / "make.py").write_text("raise SystemExit('not what ran')\n")
    shutil.rmtree(root / "made")
    assert answer("replay", made["id"], cwd=root, env=env)["verdict"] == "BITWISE"
    assert not (root / "made").exists()
    assert answer("audit", cwd=root, env=env)["ok"]


def test_an_output_outside_the_workspace_is_refused(lab: Path) -> None:
    for output in ("../elsewhere.txt", "."):
        refused = labassist("run", "--out", output, "--", "python", "make.py", cwd=lab, status=2)
        assert "lies outside the workspace" in refused.stderr


def test_it_runs_in_the_folder_it_was_started_in(lab: Path) -> None:
    folder = lab / "inner"
    folder.mkdir()
    (folder / "here.sh").write_text("#!/bin/sh\npwd > where.txt\nbasename $(pwd) > name.txt\n")
    os.chmod(folder / "here.sh", 0o755)
    made = run(folder, "--out", "name.txt", "--", "./here.sh")
    assert (made["cwd"], made["job"]) == ("inner", "here.sh")
    assert [out["path"] for out in made["outputs"]] == ["inner/name.txt"]
    assert answer("replay", made["id"], cwd=lab)["verdict"] == "BITWISE"
    log = (run_folder(lab, made) / "log.txt").read_text()
    assert log == ""


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


def test_more_steps_than_planned_are_not_shown_as_a_part_of_them() -> None:
    document = {"id": "x", "job": "j", "mode": "exact", "state": "finished", "step": 9, "total_steps": 6}
    assert "  step 9  " in summary(document)
    assert "  step 9 of 12  " in summary({**document, "total_steps": 12})


def test_a_file_too_large_to_be_kept_is_said_once_at_the_start_and_before_a_replay(lab: Path) -> None:
    for name, size in (("a.bin", 17), ("big.bin", 18)):
        with (lab / name).open("wb") as file:
            file.truncate(size * 2**20)
    words = ("run", "--out", "made.txt", "--", "sh", "-c", "echo made > made.txt")
    started = labassist(*words, cwd=lab)
    (line,) = [line for line in started.stderr.splitlines() if "too large" in line]
    assert line.startswith(
        "note: big.bin and 1 more (35.0 MiB together) are too large to be kept with the run:"
    )
    assert "a replay needs them unchanged at the same place" in line and ".gitignore" in line
    quiet = labassist("replay", "@last", cwd=lab)
    assert "by its hash" not in quiet.stderr and quiet.stdout.startswith("BITWISE")
    (lab / "a.bin").unlink()
    with (lab / "big.bin").open("r+b") as file:
        file.write(b"changed")
    said = labassist("replay", "@last", cwd=lab).stderr
    assert "preflight: a.bin: recorded by its hash, here missing (noted)" in said
    assert "preflight: big.bin: recorded by its hash, here changed (noted)" in said
    assert "note: recorded by its hash and not in the replay's copy: a.bin and 1 more" in said
    (lab / "big.bin").unlink()
    assert "too large" not in labassist(*words, cwd=lab).stderr


def test_of_a_file_too_large_to_be_hashed_only_name_and_size_are_claimed(lab: Path) -> None:
    with (lab / "huge.bin").open("wb") as file:
        file.truncate(HASH_LIMIT + 1)  # with nothing in it: it takes no room
    words = ("run", "--out", "made.txt", "--", "sh", "-c", "echo made > made.txt")
    (line,) = [line for line in labassist(*words, cwd=lab).stderr.splitlines() if "too large" in line]
    assert line.startswith(
        "note: huge.bin (1,024.0 MiB) is too large to be hashed at each start: only name and size"
    )
    assert "read_order().input" in line
    said = labassist("replay", "@last", cwd=lab)
    assert "note: recorded by its name and size and not in the replay's copy: huge.bin" in said.stderr
    with (lab / "huge.bin").open("r+b") as file:
        file.truncate(HASH_LIMIT + 2)
    said = labassist("replay", "@last", cwd=lab)
    assert "preflight: huge.bin: recorded by its name and size, here changed (noted)" in said.stderr
    (lab / "huge.bin").unlink()


def test_an_input_from_the_ledger_makes_no_part_of_a_ledger_in_the_replays_copy(lab: Path) -> None:
    made = run(lab, "--", "python", "make.py")
    place = f"ledger/runs/{made['id']}/order.json"
    (lab / "from.py").write_text(
        "from pathlib import Path\nfrom labassist import record\n"
        f"path = record.read_order().input('made', {place!r})\nprint(Path(path).stat().st_size, Path('ledger/runs').exists())\n"
    )
    run(lab, "--", "python", "from.py")
    replayed = answer("replay", "@last", cwd=lab, status=5)["run"]
    size = (lab / place).stat().st_size
    assert (run_folder(lab, {"id": replayed}) / "log.txt").read_text() == f"{size} False\n"


def test_an_input_that_was_changed_since_is_said_before_a_replay(lab: Path) -> None:
    (lab / "data.bin").write_bytes(bytes(5 * 2**20))
    (lab / ".gitignore").write_text((lab / ".gitignore").read_text() + "data.bin\n")
    (lab / "reads.py").write_text(
        "from labassist import record\nrecord.read_order().input('data', 'data.bin')\n"
    )
    run(lab, "--", "python", "reads.py")
    (lab / "data.bin").write_bytes(bytes(5 * 2**20 - 1) + b"x")
    found = answer("replay", "@last", cwd=lab, status=6)
    assert found["likely_causes"] == ["input data: recorded data.bin, here changed"]


def test_what_is_piped_in_is_said_not_to_reach_the_command(lab: Path) -> None:
    words = [sys.executable, "-m", "labassist", "run", "--", "sh", "-c", "wc -c"]
    (lab / "piped.txt").write_text("words")
    (lab / "empty.txt").write_text("")
    with (lab / "piped.txt").open() as file:
        said = subprocess.run(words, cwd=lab, stdin=file, capture_output=True, text=True, check=True).stderr
    assert "note: what is piped in does not reach the command" in said and "< FILE'" in said
    said = subprocess.run(words, cwd=lab, input="words", capture_output=True, text=True, check=True).stderr
    assert "note: what is piped in" in said
    with (lab / "empty.txt").open() as file:
        said = subprocess.run(words, cwd=lab, stdin=file, capture_output=True, text=True, check=True).stderr
    assert "piped" not in said


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("python3.12 -m pkg.train --lr 1", "pkg.train"),
        ("env A=b torchrun --nproc-per-node 2 -m pkg.train", "pkg.train"),
        ("git commit -m words", "git"),
        ("python -m", "python"),
        ("env A=b date", "env"),
    ],
)
def test_a_run_of_a_module_is_called_after_it(words: str, name: str) -> None:
    assert job_name(words.split(), None) == name


@pytest.mark.parametrize(
    ("value", "said"),
    [("nan:7ff8000000000000", "nan"), ("-inf", "-inf"), (1.5e-6, "1.500e-06"), (0.0, "0.0000")],
)
def test_a_number_of_a_run_is_shown_as_a_person_reads_it(value: float | str, said: str) -> None:
    document = {
        "id": "x",
        "job": "j",
        "mode": "exact",
        "state": "finished",
        "step": 1,
        "last": {"loss": value},
    }
    assert f"  loss {said}  " in summary(document)


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


LISTS = """\
import os, pathlib
from labassist import record
os.chdir(pathlib.Path(__file__).parent)
order = record.read_order()
shards = sorted(pathlib.Path("shards").glob("*.bin"))
read = [order.input(shard.name, shard).read_bytes() for shard in shards]
recorder = record.start(order=order, total_steps=len(read))
for step, part in enumerate(read, 1):
    recorder.record(step, loss=float(len(part)))
recorder.finish(len(read))
"""


def test_inputs_that_git_ignores_are_found_by_a_replay_whose_script_lists_their_folder(lab: Path) -> None:
    shards = lab / "deep" / "shards"
    shards.mkdir(parents=True)
    for number, size in enumerate((10, 5 * 2**20)):
        (shards / f"{number}.bin").write_bytes(bytes(size))
    (shards / ".gitignore").write_text("*\n")
    (lab / "deep" / "lists.py").write_text(LISTS)
    made = run(lab, "--", "python", "deep/lists.py")
    # The script runs elsewhere than the workspace, and still the record says where in it the files are.
    assert [one["path"] for one in made["inputs"]] == ["deep/shards/0.bin", "deep/shards/1.bin"]
    assert [one.get("stored", False) for one in made["inputs"]] == [True, False]
    assert answer("replay", made["id"], cwd=lab)["compared"]["steps"] == 2


@pytest.mark.fault
def test_a_start_that_finds_no_room_for_a_process_says_so_and_leaves_a_ledger_that_is_whole(
    tmp_path: Path,
) -> None:
    workspace = new(tmp_path / "lab").workspace
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def crowd() -> None:
        """Leave two files that may still be opened: the journal needs one at a time, a process more."""
        free = [os.dup(0), os.dup(0)]
        for one in free:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(free) + 1, limits[1]))

    with Ledger.open(workspace.ledger, create=True) as ledger:
        plan = plan_command(workspace, ["true"], mode="exact", seed=1, threads=1, note="", outputs=[])
        try:
            with pytest.raises(LedgerError, match="supervisor could not be started: Too many open files"):
                launch(workspace, ledger, plan, crowd)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert ledger.find("@last")["state"] == "failed"
    assert audit(workspace.ledger, workspace.root).problems == []


def test_a_git_that_cannot_be_used_is_not_taken_for_none(lab: Path, tmp_path: Path) -> None:
    git = tmp_path / "git"
    git.write_text("#!/bin/sh\nexit 1\n")
    git.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    refused = labassist("run", "--", "python", "make.py", cwd=lab, status=2, env={"PATH": path})
    assert "git cannot be used" in refused.stderr and "git --version" in refused.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("note", "@last", "a\udcff"), "the note: not UTF-8: "),
        (("run", "--note", "a\udcff", "--", "true"), "the note: not UTF-8: "),
        (("run", "--", "echo", "a\udcff"), "the run's argv is not UTF-8: "),
    ],
)
def test_what_is_not_utf8_is_named_and_nothing_is_kept(lab: Path, words: tuple[str, ...], says: str) -> None:
    run(lab, "--", "true")
    before = answer("runs", cwd=lab)
    refused = labassist(*words, cwd=lab, status=2)
    assert says in refused.stderr and "a\\xff" in refused.stderr
    assert "write it in UTF-8" in refused.stderr
    assert answer("runs", cwd=lab) == before


@pytest.mark.fault
def test_a_secret_in_the_name_of_an_output_a_folder_or_a_branch_is_not_kept(lab: Path) -> None:
    token = "ghp_" + "b7Xk2Qm9" * 4 + "Lw3z"
    refused = labassist("run", "--out", f"{token}.txt", "--", "true", cwd=lab, status=2)
    assert "--out [redacted github-token].txt: the name holds a secret" in refused.stderr
    (lab / token).mkdir()
    again = labassist("run", "--", "true", cwd=lab / token, status=2)
    assert "[redacted github-token]: the name holds a secret" in again.stderr
    subprocess.run(["git", "checkout", "-q", "-b", token], cwd=lab, check=True)
    assert run(lab, "--", "true")["code"]["branch"] == "[redacted github-token]"
    subprocess.run(["git", "checkout", "-q", "-"], cwd=lab, check=True)
    assert token not in refused.stderr + again.stderr
    assert token not in (lab / "ledger" / "journal.jsonl").read_text()
