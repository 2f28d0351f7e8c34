"""`run [--out PATH] -- CMD`: any program is recorded whole and replayed by what it makes."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from command import answer, labassist, run_folder
from own_command import MAKE, RECORDED, own_lab, run  # noqa: F401 - a fixture

from labassist.cli.ledger import summary
from labassist.errors import LedgerError
from labassist.ledger.audit import audit
from labassist.ledger.store import Ledger
from labassist.runs.command import job_name, plan_command
from labassist.runs.launch import launch
from labassist.workspace import new


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


def test_more_steps_than_planned_are_not_shown_as_a_part_of_them() -> None:
    document = {"id": "x", "job": "j", "mode": "exact", "state": "finished", "step": 9, "total_steps": 6}
    assert "  step 9  " in summary(document)
    assert "  step 9 of 12  " in summary({**document, "total_steps": 12})


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
