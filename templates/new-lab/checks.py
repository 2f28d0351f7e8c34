"""One function a checked step: what was expected, what was got, and where that stands."""

from __future__ import annotations

from typing import Any

from labassist.course.evidence import Evidence
from labassist.course.model import Criterion, Measured


def short(run: dict[str, Any]) -> str:
    """Return how a run is named in a source."""
    return f"run {run['id'].rpartition('-')[2]}"


def error(found: Evidence) -> list[Criterion]:
    got = found.program(["error.py"])["error"]
    wanted = (0 + 4 + 9) / 3
    return [
        Criterion(
            "the mean squared error is right",
            abs(got - wanted) < 1e-9,
            f"{wanted:.4f}",
            f"{got:.4f}",
            "error.py, three points",
        )
    ]


def fit(found: Evidence) -> list[Criterion]:
    run = found.run("fit")
    losses = found.series(run, "loss")
    (_, first), (step, last) = losses[0], losses[-1]
    return [
        Criterion(
            "the loss falls to a half",
            0 <= last < first / 2,
            f"below {first / 2:.3f}",
            f"{last:.3f}",
            f"{short(run)} step {step}",
        )
    ]


def measured_guess(found: Evidence) -> Measured:
    run = found.run("fit")
    losses = found.series(run, "loss")
    step = next(step for step, loss in losses if loss < losses[0][1] / 2)
    return Measured(f"{step} steps", f"{short(run)}, series loss")


def rate(found: Evidence) -> list[Criterion]:
    run = found.run("rate")
    losses = found.series(run, "loss")
    (_, first), (step, last) = losses[0], losses[-1]
    return [
        Criterion(
            "the loss grows", last > first, f"above {first:.3g}", f"{last:.3g}", f"{short(run)} step {step}"
        )
    ]


def measured_rate(found: Evidence) -> Measured:
    run = found.run("rate")
    losses = found.series(run, "loss")
    option = "c" if losses[-1][1] > losses[0][1] else "a"
    return Measured(f"from {losses[0][1]:.3g} to {losses[-1][1]:.3g}", short(run), option)


def replay(found: Evidence) -> list[Criterion]:
    run = found.run("replay")
    verdict = run["verdict"]
    return [
        Criterion(
            "the replay is equal to the bit",
            verdict["verdict"] == "BITWISE",
            "BITWISE",
            verdict["verdict"],
            f"{short(run)}, {verdict.get('steps', 0)} steps",
        )
    ]


def compare(found: Evidence) -> list[Criterion]:
    fit_run, rate_run = found.run("fit"), found.run("rate")
    a, b = found.series(fit_run, "loss")[-1][1], found.series(rate_run, "loss")[-1][1]
    here, there = fit_run["config"], rate_run["config"]
    differs = sorted(key for key in here if here[key] != there.get(key))
    both = f"{short(fit_run)}, {short(rate_run)}"
    return [
        Criterion("the small rate ends lower", a < b, f"below {b:.3g}", f"{a:.3g}", both),
        Criterion("only the rate differs", differs == ["optim.lr"], "optim.lr", ", ".join(differs), both),
    ]
