"""No secret is ever in the ledger: whatever starts a run, and whatever a person writes, with secrets all around."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import little
import pytest
import standin
from command import QUICK, answer, labassist, wait_closed, wait_until

from labassist.app.command import Background
from labassist.ledger.store import Ledger
from labassist.runs.launch import Plan, launch
from labassist.serving import place
from labassist.workspace import Workspace

pytestmark = [pytest.mark.fault, pytest.mark.ci]

# Made of parts, so that no scanner takes this file for what it tests.
SECRETS = {
    "HF_TOKEN": "hf_" + "Q7vR2mK9xT4wL8nB3cJ6" + "pY5sD1gH0z",
    "HF_HUB_TOKEN": "hf_" + "Z1yX2wV3uT4sR5qP6oN7" + "mL8kJ9iH0g",
    "HF_ENDPOINT": "https://someone:" + "pl41n" + "Passw0rd" + "@hub.example.org",
    "WANDB_API_KEY": "0f1e2d3c4b5a" + "69788796a5b4c3d2e1f00f1e2d3c",
    "VLLM_API_KEY": "local-" + "k3y-R8tY2uI9oP4a",
    "CUDA_DEBUG_PASSWORD": "correct-horse-" + "battery-77",
}
VALUES = [value.split(":")[-1].split("@")[0] for value in SECRETS.values()]


@pytest.fixture
def lab(little_lab: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(little_lab, tmp_path / "lab", symlinks=True))


def clean(lab: Path, besides: str = "") -> bool:
    """Look for every secret in every byte of the ledger."""
    files = [path for path in (lab / "ledger").rglob("*") if path.is_file() and path.name != besides]
    found = [(path, value) for path in files for value in VALUES if value.encode() in path.read_bytes()]
    assert len(files) > 20 and not found, found
    return True


def test_no_secret_of_the_environment_is_kept_by_anything_that_starts_a_run(lab: Path) -> None:
    (lab / "uses.sh").write_text('#!/bin/sh\nprintf %s "$HF_TOKEN$HF_ENDPOINT" | sha256sum > used.txt\n')
    on_end = ("--on-end", 'test -n "$HF_TOKEN"')
    made = answer("run", "--out", "used.txt", *on_end, "--", "sh", "uses.sh", cwd=lab, env=SECRETS)
    assert clean(lab)
    # What was kept as a reference is filled in: the replay reads the same values.
    assert answer("replay", made["id"], cwd=lab, env=SECRETS)["verdict"] == "BITWISE"
    assert clean(lab)
    failed = little.record(lab, 30, 10, status=7, env={**SECRETS, "LITTLE_CRASH": "17"})
    resumed = answer("resume", failed["id"], *on_end, cwd=lab, env=SECRETS)
    assert answer("replay", resumed["id"], "--segment", cwd=lab, env=SECRETS)["verdict"] == "BITWISE"
    assert clean(lab)


@pytest.mark.slow
def test_no_secret_is_kept_by_an_experiment(lab: Path) -> None:
    command = ("--", "python", little.SCRIPT, "20", "5", "0.05")
    assert answer("ckpt", "prove", "--kill", *command, cwd=lab, env=SECRETS)["verdict"] == "BITWISE"
    assert clean(lab)


@pytest.mark.slow
def test_no_secret_is_kept_by_an_ablation(lab: Path) -> None:
    job = ("01-first-loop/train", "--profile", "tiny", *QUICK)
    answer("ckpt", "ablate", *job, "--drop", "rng", cwd=lab, env=SECRETS, deadline=600)
    assert clean(lab)


def test_no_secret_is_kept_by_a_script_that_enlists_itself(lab: Path) -> None:
    (lab / "alone.py").write_text(
        "from labassist.record.trainer_alone import enlist\nprint(enlist('exact', 7, 1).run)\n"
    )
    words = [sys.executable, "alone.py", "--hub-token", SECRETS["HF_TOKEN"]]
    env = {**little.ours(), **SECRETS}
    done = subprocess.run(words, cwd=lab, env=env, capture_output=True, text=True, check=True)
    run = wait_closed(lab, {"id": done.stdout.strip()})
    assert run["argv"][-1] == "${HF_TOKEN}" and clean(lab)
    answer("replay", run["id"], cwd=lab, env=SECRETS, status=None)
    assert clean(lab)


@pytest.mark.slow
def test_no_secret_is_kept_by_a_server(lab: Path, tmp_path: Path) -> None:
    standin.model(lab / "outputs" / "tuned")
    env = {**SECRETS, place.VARIABLE: str(standin.engine(tmp_path / "vllm"))}
    run = answer("serve", "outputs/tuned", "--port", "0", "--detach", cwd=lab, env=env)
    try:
        labassist("chat", run["id"], "hello", cwd=lab, env=env, status=None)
    finally:
        labassist("stop", run["id"], "--wait", cwd=lab, status=None, env=env)
    assert answer("show", run["id"], cwd=lab)["state"] == "stopped" and clean(lab)


def test_what_a_person_writes_is_kept_without_its_secrets_and_says_so(lab: Path) -> None:
    other = "hf_" + "A9sD8fG7hJ6kL5zX4cV3" + "bN2mQ1wE0r"
    text = f"tok {SECRETS['HF_TOKEN']}, key {SECRETS['VLLM_API_KEY']}, other {other}"
    kept = "tok [redacted HF_TOKEN], key [redacted VLLM_API_KEY], other [redacted hub-token]"
    done = labassist("run", "--note", text, "--detach", "--", "true", cwd=lab, env=SECRETS)
    said = "had a secret in it, and is kept with [redacted HF_TOKEN], [redacted VLLM_API_KEY], [redacted hub-token]"
    assert f"note: the note {said}" in done.stderr
    run = wait_closed(lab, {"id": done.stdout.strip()})
    assert run["note"] == kept
    assert said in labassist("note", run["id"], f" - {text}", cwd=lab, env=SECRETS).stderr
    assert answer("show", run["id"], cwd=lab)["note"] == f"{kept}\n- {kept}"
    plain = labassist("note", run["id"], "loss 1.93 at step 7, lr=3e-4", cwd=lab, env=SECRETS)
    assert plain.stderr == "" and clean(lab)
    files = [path for path in (lab / "ledger").rglob("*") if path.is_file()]
    assert not any(other.encode() in path.read_bytes() for path in files)
    # Whatever else starts a run goes through here.
    with Ledger.open(lab / "ledger") as ledger:
        plan = Plan(job="true", kind="command", argv=["true"], note=f"other {other}")
        started = launch(Workspace(lab), ledger, plan)
    assert wait_closed(lab, {"id": started})["note"] == "other [redacted hub-token]"


def test_the_last_line_of_a_failed_replay_is_kept_without_its_secrets(lab: Path) -> None:
    (lab / ".gitignore").write_text((lab / ".gitignore").read_text() + "flag\n")
    (lab / "flag").touch()
    words = ("sh", "-c", 'test -f flag && echo made > made && exit; echo "bad key $VLLM_API_KEY"; exit 1')
    run = answer("run", "--out", "made", "--", *words, cwd=lab, env=SECRETS)
    found = answer("replay", run["id"], cwd=lab, env=SECRETS, status=4)
    assert "its last line: bad key [redacted VLLM_API_KEY]" in found["likely_causes"][0]
    assert clean(lab, besides="log.txt")


def test_what_holds_a_log_is_for_its_owner_alone(lab: Path) -> None:
    before = os.umask(0)
    try:
        done = labassist(
            "run", "--on-end", "echo ended", "--", "sh", "-c", "echo said; exit 3", cwd=lab, status=3
        )
        background = Background(lab, "replay", "replay", "@last")
        made = list((lab / ".labassist" / "background").iterdir())
        modes = [path.stat().st_mode & 0o777 for path in (made[0].parent, *made)]
        assert modes == [0o700, 0o600, 0o600]
        wait_until(lambda: background.poll()[0], "the replay")
    finally:
        os.umask(before)
    assert "said" in done.stderr
    for folder in sorted((lab / "ledger" / "runs").iterdir())[-2:]:
        assert folder.stat().st_mode & 0o777 == 0o700
        logs = [
            folder / name for name in ("log.txt", "supervisor.log", "on-end.log") if (folder / name).exists()
        ]
        assert len(logs) >= 2 and all(log.stat().st_mode & 0o777 == 0o600 for log in logs), logs


def test_a_command_at_the_end_and_a_setting_with_a_secret_are_refused(lab: Path) -> None:
    header = f"curl -H 'Authorization: Bearer {SECRETS['HF_TOKEN']}' x"
    done = labassist("run", "--on-end", header, "--", "true", cwd=lab, status=2)
    assert "--on-end: has a secret in it, and is recorded; name an environment variable" in done.stderr
    words = ("run", "01-first-loop/train", "--profile", "tiny", f"--set=card={SECRETS['HF_TOKEN']}")
    labassist(*words, cwd=lab, status=2)
    assert clean(lab)
