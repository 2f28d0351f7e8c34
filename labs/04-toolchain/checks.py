"""What each step of the toolchain lab must have shown."""

from __future__ import annotations

from labassist.course.evidence import Evidence
from labassist.course.model import Criterion, Measured

LEFT = [[0, 0, 1, 1, 1], [0, 0, 0, 0, 1], [1, 1, 1, 1, 1]]
RIGHT = [[1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1]]
NEAR = 1e-3
"""Logits in fp32 that are this close come from another order of the same sums."""


def mask(found: Evidence) -> list[Criterion]:
    told = found.program(["mask.py", "--check"])
    left, right = told["left"], told["right"]
    wanted = [
        [max(at for at, one in enumerate(row) if one) for row in side["masks"]] for side in (left, right)
    ]
    return [
        Criterion(
            "filled left, the mask ends with ones",
            left["masks"] == LEFT,
            f"{LEFT}",
            f"{left['masks']}",
            "mask.py",
        ),
        Criterion(
            "filled right, the mask begins with ones",
            right["masks"] == RIGHT,
            f"{RIGHT}",
            f"{right['masks']}",
            "mask.py",
        ),
        Criterion(
            "the last token that counts is found",
            [left["last"], right["last"]] == wanted,
            f"{wanted}",
            f"{[left['last'], right['last']]}",
            "mask.py",
        ),
    ]


def tour(found: Evidence) -> list[Criterion]:
    run = found.run("tour")
    last, where = run["last"], f"run {run['id'].rpartition('-')[2]}"

    def criterion(name: str, ok: bool, expected: str, *series: str) -> Criterion:
        got = ", ".join(f"{one} {last[one]:.4g}" for one in series)
        return Criterion(name, ok, expected, got, where)

    return [
        criterion(
            "with a mask a batch is as good as single texts",
            max(last["left_masked"], last["right_masked"]) < NEAR,
            f"below {NEAR:g}",
            "left_masked",
            "right_masked",
        ),
        criterion(
            "without one, filling at the left changes what is said",
            last["left_unmasked"] > 0.1,
            "above 0.1",
            "left_unmasked",
        ),
        criterion(
            "filled at the left, a batch writes what single texts write",
            last["left_differs"] == 0,
            "0 of 3 differ",
            "left_differs",
        ),
        criterion(
            "four bits are less than 60% of sixteen",
            last["mb_4"] < 0.6 * last["mb_16"],
            "mb_4 below 0.6 mb_16",
            "mb_4",
            "mb_16",
        ),
        criterion(
            "one step lowers the loss of its sample",
            last["loss_after"] < last["loss_before"],
            "loss_after below loss_before",
            "loss_before",
            "loss_after",
        ),
    ]


def measured_tour(found: Evidence) -> Measured:
    run = found.run("tour")
    differs = run["last"]["right_differs"]
    return Measured(
        f"{differs:.0f} of 3 differ",
        f"run {run['id'].rpartition('-')[2]}",
        "a" if not differs else "b" if differs < 3 else "c",
    )
