"""What each step of the fine-tuning lab must have shown, from recorded runs and the learner's file."""

from __future__ import annotations

import tomllib
from typing import Any

from labassist.course.evidence import Evidence, Missing
from labassist.course.model import Criterion, Measured
from labassist.errors import counted

MERGE = "finetune/merge"
LOW = 0.5
"""Nats a token of the answers: the base begins at about 2.6, and a form that is known costs little."""
UPDATES, TENTH = 225, 22
"""Of the article's training, and a tenth of them."""


def short(run: dict[str, Any]) -> str:
    """Return how a run is named in a source."""
    return f"run {run['id'].rpartition('-')[2]}"


def learn(found: Evidence) -> list[Criterion]:
    run = found.run("learn")
    last, loss = run["last"], found.series(run, "eval_loss")[-1]
    low = found.series(run, "format_gain_low")[-1][1]
    where = f"{short(run)} step {loss[0]}"
    return [
        Criterion(
            "without the adapters the form is not kept",
            last["format_base"] <= 0.5,
            "at most half of the answers",
            f"{last['format_base']:.0%}",
            where,
        ),
        Criterion(
            "the gain's interval excludes zero",
            low > 0,
            "above 0",
            f"from {low:.2f}",
            f"{where}, format_gain_low",
        ),
        Criterion(
            "the held-out loss is low", loss[1] < LOW, f"below {LOW}", f"{loss[1]:.3f}", f"{where}, eval_loss"
        ),
    ]


def measured_learn(found: Evidence) -> Measured:
    run = found.run("learn")
    kept = run["last"]["format_tuned"]
    option = "a" if kept < 0.2 else "b" if kept < 0.8 else "c"
    return Measured(
        f"{kept:.0%} keep the form, {run['last']['right_tuned']:.0%} are right", short(run), option
    )


def merge(found: Evidence) -> list[Criterion]:
    merges = found.runs(MERGE)
    if not merges:
        raise Missing("nothing was merged yet", run="labassist merge @07-qlora/sft --out outputs/merged")
    run = merges[0]
    given = next((one for one in run["inputs"] if one["name"] == "adapter"), {"sha256": "", "split": {}})
    trained = next((one for one in found.runs("sft") if one["id"] == given["split"].get("run")), None)
    adapter, whose = "", "of a finished run of 07-qlora/sft"
    if trained is not None:
        _folder, manifest = found.checkpoint(trained)
        adapter = manifest["files"]["adapter_model.safetensors"]["sha256"]
        whose = f"{adapter[:12]}…, the last checkpoint of {short(trained)}"
    made = [one["sha256"] for one in run["outputs"] if one["sha256"]]
    return [
        Criterion(
            "the adapter is the one that was trained",
            bool(adapter) and given["sha256"] == adapter,
            whose,
            f"{given['sha256'][:12]}…" if given["sha256"] else "none",
            f"inputs of {short(run)}",
        ),
        Criterion(
            "the merged folder is in the ledger",
            bool(made),
            "a digest",
            f"{made[0][:12]}…" if made else "none",
            f"outputs of {short(run)}",
        ),
    ]


def proof(found: Evidence) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the newest run that was killed and gone on with, and the segment that was killed."""
    for run in found.runs("sft", "tiny"):
        earlier = found.lineage(run)[:-1]
        if run.get("verdict") and earlier and not run.get("dropped"):
            return run, earlier[-1]
    raise Missing(
        "no killed run was gone on with and compared yet",
        run="labassist ckpt prove 07-qlora/sft --profile tiny --kill --at 5",
    )


def exact(found: Evidence) -> list[Criterion]:
    run, killed = proof(found)
    verdict = run["verdict"]["verdict"]
    return [
        Criterion(
            "the trainer died of signal 9",
            killed.get("signal") == 9,
            "9",
            str(killed.get("signal")),
            short(killed),
        ),
        Criterion(
            "the end is the same, bit for bit",
            verdict == "BITWISE",
            "BITWISE",
            f"{verdict}, {counted(run['verdict'].get('steps', 0), 'updates')} and {counted(run['verdict'].get('tensors', 0), 'tensors')}",
            f"verdict of {short(run)}",
        ),
    ]


def measured_exact(found: Evidence) -> Measured:
    run, _killed = proof(found)
    verdict = run["verdict"]["verdict"]
    return Measured(verdict, short(run), "b" if verdict == "BITWISE" else "a")


def risk(found: Evidence) -> list[Criterion]:
    path = found.path("article.toml")
    told = tomllib.loads(path.read_text(encoding="utf-8"))
    every, source = told["every"]["checkpoint"], "labs/07-qlora/article.toml"
    same = (told["steps"], told["batch"], told["accumulate"])
    return [
        Criterion(
            "a checkpoint falls before the end",
            every < UPDATES,
            f"every {UPDATES - 1} or fewer",
            f"{every}",
            source,
        ),
        Criterion(
            "a crash costs a tenth at most",
            every <= TENTH or every >= UPDATES,
            f"{TENTH}",
            f"{every}",
            source,
        ),
        Criterion(
            "it is the same training", same == (UPDATES, 1, 8), f"{(UPDATES, 1, 8)}", f"{same}", source
        ),
    ]


def text(found: Evidence) -> list[Criterion]:
    run = found.run("text")
    seen = found.series(run, "eval_loss")
    (begin, first), (end, last) = seen[0], seen[-1]
    return [
        Criterion(
            "the held-out loss falls",
            last < first - 0.05,
            f"below {first:.3f} by 0.05",
            f"{last:.3f}",
            f"{short(run)} steps {begin} and {end}",
        )
    ]


RANKS = ("r=4", "r=8", "r=16", "r=32")


def sweep(found: Evidence) -> list[Criterion]:
    run = found.run("sweep")
    counts = [len(found.series(run, name)) for name in RANKS]
    seeds = run["config"]["seeds"]
    values = [value for _seed, value in found.series(run, "r=16")]
    mean = sum(values) / len(values)
    low, high = (found.series(run, f"r=16.{side}")[-1][1] for side in ("low", "high"))
    return [
        Criterion(
            "each rank was trained with each seed",
            counts == [seeds] * len(RANKS),
            f"{counted(seeds, 'seeds')} of {len(RANKS)} ranks",
            ", ".join(map(str, counts)),
            short(run),
        ),
        Criterion(
            "the loss lies in its interval",
            low <= mean <= high,
            f"{mean:.3f} in it",
            f"{low:.3f} to {high:.3f}",
            f"{short(run)}, r=16",
        ),
    ]


def measured_sweep(found: Evidence) -> Measured:
    run = found.run("sweep")
    low, high = (found.series(run, f"r=4.apart_{side}")[-1][1] for side in ("low", "high"))
    option = "a" if low > 0 else "c" if high < 0 else "b"
    return Measured(f"rank 4 costs {low:+.3f} to {high:+.3f} nats against rank 16", short(run), option)
