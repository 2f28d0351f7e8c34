"""Two processes by torchrun (gloo): what is checked and proved of checkpoints that have a part a rank.

Needs the `train` extra.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import answer, labassist, run_folder, wait_closed, wait_for_step

from labassist.ledger import curves
from labassist.record.inspect import committed
from labassist.resume.check import Report, check
from labassist.resume.watch import watched
from labassist.workspace import new

SCRIPTS = Path(__file__).parent / "scripts"
TWO = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = new(tmp_path_factory.mktemp("ranks") / "lab").workspace.root
    for name in ("ranks_loop.py", "ranks_hf.py"):
        shutil.copy(SCRIPTS / name, root)
    (root / "sitecustomize.py").write_text(f"import sys; sys.path.append({str(SCRIPTS.parent)!r})\n")
    subprocess.run(["git", "add", "."], cwd=root, check=True)
    subprocess.run(["git", "commit", "-qm", "two ranks"], cwd=root, check=True)
    return root


def prove(
    lab: Path, script: str, *words: str, options: tuple[str, ...] = (), status: int = 0, **more: str
) -> Any:
    command = ["--threads", "1", "--", sys.executable, *TWO, script, *words]
    env = {"PYTHONPATH": str(lab), **more}
    return answer("ckpt", "prove", *options, *command, cwd=lab, status=status, env=env, deadline=900)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("options", "steps", "every", "last"),
    [
        (("--at", "15"), 24, 6, 15),
        (("--kill", "--at", "150"), 600, 100, 100),
    ],  # far from the next, for a kill
)
def test_a_loop_of_two_ranks_is_proved_bit_for_bit(
    lab: Path, options: tuple[str, ...], steps: int, every: int, last: int
) -> None:
    found = prove(lab, "ranks_loop.py", options=options, STEPS=str(steps), EVERY=str(every))
    assert found["verdict"] == "BITWISE", found
    assert found["resumed_from"]["step"] == last
    assert found["compared"]["steps"] == steps and found["compared"]["series"] == 6  # three a rank
    assert found["rng"] and all(one["equal"] for one in found["rng"])
    assert found["check"]["verdict"] == "EXACT"
    interrupted = answer("show", found["runs"]["interrupted"], cwd=lab)
    assert interrupted["state"] == ("failed" if "--kill" in options else "stopped")
    for path in run_folder(lab, interrupted).glob("events-rank*.jsonl"):
        pid = next(json.loads(line)["pid"] for line in path.read_text().splitlines() if "pid" in line)
        assert not Path(f"/proc/{pid}").exists()  # no rank outlives its launcher


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("fault", "code", "rank"),
    [("missing", "rng-rank-missing", 1), ("swapped", "ranks-swapped", 0), ("copied", "rank-copied", 1)],
)
def test_a_trainer_with_damaged_rank_files_diverges_and_the_check_says_why(
    lab: Path, fault: str, code: str, rank: int
) -> None:
    found = prove(lab, "ranks_hf.py", fault, f"hf-{fault}", options=("--at", "5"), status=4)
    assert (found["verdict"], found["culprit"]) == ("DIVERGED", "rng")
    first = found["first_difference"]
    assert (first["resumed_step"], first["series"], first["rank"]) == (1, "loss", rank)
    assert [one["code"] for one in found["check"]["findings"]] == [code]
    assert found["check"]["verdict"] == "DEGRADED"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("line", [False, True])
def test_a_trainer_of_two_ranks_is_proved_bit_for_bit(lab: Path, line: bool) -> None:
    name = "hf-line" if line else "hf-stock"
    script = (lab / "ranks_hf.py").read_text()
    if line:
        script = script.replace(
            "trainer.train()", "from labassist import record; record.attach(trainer)\ntrainer.train()"
        )
    (lab / f"{name}.py").write_text(script)
    found = prove(lab, f"{name}.py", "none", name, options=("--at", "5"))
    assert found["verdict"] == "BITWISE", found
    assert found["resumed_from"]["step"] == 5 and found["compared"]["series"] == 8
    assert found["rng"] and all(one["equal"] for one in found["rng"])


@pytest.mark.slow
def test_a_loop_of_two_ranks_stops_at_one_step(lab: Path) -> None:
    words = ("run", "--detach", "--json", "--threads", "1", "--", sys.executable, *TWO, "ranks_loop.py")
    run = json.loads(labassist(*words, cwd=lab, env={"STEPS": "1000000", "EVERY": "1000000"}).stdout)
    folder = run_folder(lab, run)
    wait_for_step(folder, 5)
    labassist("stop", run["id"], cwd=lab)
    assert wait_closed(lab, run)["state"] == "stopped"
    last = [curves.read_curve(folder / f"metrics-rank{rank}.jsonl").steps[-1] for rank in (0, 1)]
    assert last[0] == last[1] == int((folder / "stop-at").read_text())
    assert list(committed(folder)) == [last[0]]


def ours(lab: Path, ranks: str, *words: str) -> Path:
    """Record the loop with so many ranks and return its last checkpoint."""
    launcher = [*TWO[:-1], ranks]
    done = labassist(
        "run", "--json", "--threads", "1", "--", "python", *launcher, "ranks_loop.py", *words, cwd=lab
    )
    return list(committed(run_folder(lab, json.loads(done.stdout))).values())[-1]


def report(path: Path, *args: Any) -> Report:
    found = check(path, *args)
    assert isinstance(found, Report)
    return found


def codes(found: Report, *severities: str) -> set[str]:
    return {one.code for one in found.found.findings if one.severity in (severities or ("warning", "error"))}


@pytest.fixture(scope="module")
def two(lab: Path) -> Path:
    return ours(lab, "2")


@pytest.mark.slow
def test_ours_says_when_another_number_of_ranks_is_planned(lab: Path, two: Path) -> None:
    one = ours(lab, "1")
    assert (report(two).verdict, report(two).found.world_size) == ("EXACT", 2)
    assert (report(one).verdict, report(one).found.world_size) == ("EXACT", 1)
    for path, now in ((two, 1), (one, 2)):
        assert codes(report(path, {"world_size": now})) == {"world-size-changed"}
        assert codes(report(path, {"world_size": 3 - now})) == set()


def resealed(path: Path, change: Callable[[list[Any]], list[Any]]) -> None:
    """Change the generators of the ranks, and mend the manifest and COMMIT as nobody would by accident."""
    state = json.loads((path / "state.json").read_bytes())
    state["states"]["rng"]["ranks"] = change(state["states"]["rng"]["ranks"])
    (path / "state.json").write_text(json.dumps(state))
    manifest = json.loads((path / "manifest.json").read_bytes())
    data = (path / "state.json").read_bytes()
    manifest["files"]["state.json"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(manifest))
    (path / "COMMIT").write_text(hashlib.sha256((path / "manifest.json").read_bytes()).hexdigest())


@pytest.mark.slow
def test_ours_keeps_all_ranks_in_one_sealed_file(lab: Path, two: Path, tmp_path: Path) -> None:
    path = shutil.copytree(two, tmp_path / two.name)
    resealed(path, lambda ranks: ranks[:1])
    [missing] = [one for one in report(path).found.findings if one.code == "rng-rank-missing"]
    assert (missing.rank, missing.severity) == (1, "warning")
    resealed(path, lambda ranks: [ranks[0], ranks[0]])
    assert "rng-identical" in codes(report(path), "info")
    for name in ("swap", "copy"):
        path = shutil.copytree(two, tmp_path / name / two.name)
        state = json.loads((path / "state.json").read_bytes())
        ranks = state["states"]["rng"]["ranks"]
        state["states"]["rng"]["ranks"] = ranks[::-1] if name == "swap" else [ranks[0], ranks[0]]
        (path / "state.json").write_text(json.dumps(state))
        assert codes(report(path)) == {"hash-mismatch"}
    assert "rng-identical" in codes(report(ours(lab, "2", "alike")), "info")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("was", "now", "state", "line"),
    [
        ("2", "1", "finished", "saved by 2 processes, resumed by 1: not the same run"),
        (
            "1",
            "2",
            "failed",
            "the checkpoint holds the RNG of 1 ranks, this is rank 1; resume with 1 processes",
        ),
    ],
)
def test_a_resume_by_another_number_of_ranks_does_not_pass_in_silence(
    lab: Path, was: str, now: str, state: str, line: str
) -> None:
    launch = 'exec "$1" -m torch.distributed.run --standalone --nproc-per-node "$(cat ranks)" ranks_loop.py'
    (lab / "train.sh").write_text(launch + "\n")
    (lab / "ranks").write_text(was)
    (lab / "crash").touch()
    words = ("--threads", "1", "--", "sh", "train.sh", sys.executable)
    crashed = json.loads(labassist("run", "--json", *words, cwd=lab, status=1).stdout)
    assert (crashed["state"], crashed["step"]) == ("failed", 13)
    (lab / "ranks").write_text(now)
    (lab / "crash").unlink()
    resumed = json.loads(labassist("resume", "--json", crashed["id"], cwd=lab, status=None).stdout)
    assert resumed["state"] == state and resumed["resumed_from"]["step"] == 12
    assert line in labassist("logs", resumed["id"], cwd=lab).stdout


def test_launchers_start_the_watch_once_a_rank(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text("import transformers\n")
    watch = ["-m", "labassist.resume.watch", "mine.py", "--lr", "1"]
    mine = ["mine.py", "--lr", "1"]
    for before in (
        ["python"],
        ["python", "-u"],
        ["torchrun", "--nproc-per-node", "2"],
        ["python", *TWO],
        ["accelerate", "launch", "--num_processes", "2"],
        ["mpirun", "-n", "2", "python"],
    ):
        assert watched([*before, *mine], script) == [*before, *watch]
    for before in (["sh", "-c"], ["python", "-m", "pdb"]):
        assert watched([*before, *mine], script) == [*before, *mine]
    script.write_text("from labassist import record\n")
    assert watched(["torchrun", *mine], script) == ["torchrun", *mine]
