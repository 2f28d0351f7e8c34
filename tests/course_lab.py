"""A small lab in a workspace, and runs of its job that were recorded in a moment: no trainer is needed to read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from labassist.course.load import Course
from labassist.course.model import Lab
from labassist.ledger.records import Code, Machine, Run, to_document
from labassist.ledger.store import Ledger, new_run_id
from labassist.workspace import Workspace

TOML = """\
title = "A small lab"
summary = "For tests"
weeks = [2, 3]
needs = "laptop"
hours = 0.5

[[steps]]
id = "intro"
title = "Read this"
kind = "read"

[[steps]]
id = "bet"
title = "Bet"
kind = "predict"
predict = { question = "How low?", unit = "nats" }

[[steps]]
id = "plain"
title = "A plain run"
kind = "run"
hints = ["run it"]
run = { job = "train", profile = "tiny" }

[[steps]]
id = "fast"
title = "A faster one"
kind = "run"
predict = { question = "It will", options = { a = "fall", b = "rise" } }
run = { job = "train", profile = "tiny", set = ["optim.lr=2.0"] }
hints = ["a nudge", "more", "nearly the answer"]
[steps.check]
alter = [{ criterion = "the loss falls", series = "loss", by = -1.0 }]

[[steps]]
id = "double"
title = "Double it"
kind = "edit"
edit = { file = "double.py", find = "your turn" }
hints = ["times two"]
[steps.check]
solution = "double.py"
seconds = 20
alter = [{ criterion = "4 becomes 8", file = "double.py", find = "* 2", put = "* 3" }]
"""

CHECKS = """\
from labassist.course.evidence import Evidence, Missing
from labassist.course.model import Criterion, Measured


def fast(found: Evidence) -> list[Criterion]:
    run = found.run("fast")
    losses = found.series(run, "loss")
    (_, first), (step, last) = losses[0], losses[-1]
    return [Criterion("the loss falls", 0 <= last < first, f"below {first}", f"{last}", f"{run['id']} step {step}")]


def measured_fast(found: Evidence) -> Measured:
    losses = found.series(found.run("fast"), "loss")
    return Measured(f"from {losses[0][1]} to {losses[-1][1]}", "series loss", "a" if losses[-1][1] < losses[0][1] else "b")


def measured_bet(found: Evidence) -> Measured:
    return Measured(f"{found.series(found.run('plain'), 'loss')[-1][1]} nats", "the plain run")


def double(found: Evidence) -> list[Criterion]:
    got = found.program(["double.py"])["four"]
    return [Criterion("4 becomes 8", got == 8, "8", str(got), "double.py")]
"""

DOUBLE = """\
import json
from helper import START

def double(x):
    return x  # your turn

print("talk first")
print(json.dumps({"four": double(START)}))
"""

FILES = {
    "lab.toml": TOML,
    "checks.py": CHECKS,
    "double.py": DOUBLE,
    "helper.py": "START = 4\n",
    "solutions/double.py": DOUBLE.replace("return x  # your turn", "return x * 2"),
    "jobs.toml": '[train]\nscript = "train.py"\nconfig = "train.toml"\ndefault_profile = "laptop"\n',
    "train.py": "print('never run here')\n",
    "train.toml": "steps = 20\n[optim]\nlr = 0.1\n[profiles.tiny]\nsteps = 5\n",
    **{f"steps/{name}.md": f"# {name}\n\nText.\n" for name in ("intro", "bet", "plain", "fast", "double")},
    "steps/intro.zh.md": "# 开始\n",
}

ID = "90-small"


def folders(root: Path) -> Workspace:
    """Make the folders of a workspace, without a repository: enough for what records nothing."""
    for name in ("labs", "ledger"):
        (root / name).mkdir()
    return Workspace(root)


def write(workspace: Workspace, lab: str = ID, **changed: str) -> Path:
    """Put the lab into a workspace; `changed` replaces files (`lab_toml=…`, `checks_py=…`)."""
    folder = workspace.labs / lab
    renamed = {"lab_toml": "lab.toml", "checks_py": "checks.py", "double_py": "double.py"}
    for name, text in {**FILES, **{renamed[key]: text for key, text in changed.items()}}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def loaded(workspace: Workspace, lab: str = ID) -> tuple[Course, Lab]:
    """Return the course and the lab."""
    course = Course.load(workspace)
    return course, course.lab(lab)


def record(
    workspace: Workspace,
    losses: list[float],
    *,
    job: str = f"{ID}/train",
    profile: str = "tiny",
    state: str = "finished",
    **config: Any,
) -> str:
    """Put a run with this curve into the ledger, and return its id."""
    run_id = new_run_id()
    with Ledger.open(workspace.ledger, create=True) as ledger:
        folder = ledger.run_folder(run_id)
        folder.mkdir(parents=True)
        rows = [
            json.dumps({"step": at, "t": at / 10, "loss": loss}) + "\n" for at, loss in enumerate(losses, 1)
        ]
        (folder / "metrics-rank0.jsonl").write_text("".join(rows))
        run = Run(
            id=run_id,
            job=job,
            kind="job",
            state=state,  # type: ignore[arg-type]
            mode="exact",
            seed=1337,
            created=f"2026-11-30T00:00:{len(list(ledger.runs)):02d}.000Z",
            argv=["python", "train.py"],
            cwd=".",
            machine=Machine("0" * 16, "host"),
            code=Code("none"),
            profile=profile,
            config={"steps": 5, "optim.lr": 0.1, **config},
            last={"loss": losses[-1]} if losses else {},
            step=len(losses),
        )
        ledger.write("start", to_document(run))
    return run_id
