"""A lab as the screen knows it: the newest answer for each step, and which step is shown."""

from __future__ import annotations

from typing import Any

from labassist.app import coursefacts
from labassist.app.where import Source
from labassist.app.words import Line, Signs


class LabState:
    """What `lab`, `check` and `hint` answered, put together."""

    def __init__(self, lab: str) -> None:
        self.id = lab
        self.steps: list[dict[str, Any]] = []
        """Empty until the lab is read."""
        self.at = 0
        """Index of the step that is shown."""
        self._lab: dict[str, Any] = {}

    @property
    def step(self) -> dict[str, Any] | None:
        """The step that is shown; None until the lab is read."""
        return self.steps[self.at] if self.steps else None

    @property
    def place(self) -> str:
        """How commands name the step that is shown: `01-first-loop/clip`."""
        return f"{self.id}/{self.steps[self.at]['id']}" if self.steps else self.id

    @property
    def on_last(self) -> bool:
        """Whether the last step is shown."""
        return self.at == len(self.steps) - 1

    @property
    def guessing(self) -> bool:
        """Whether the step has a question that is not answered yet."""
        return self.step is not None and coursefacts.waits_for_guess(self.step)

    @property
    def options(self) -> dict[str, str]:
        """The letters that answer the open question; none where it is answered, or wants a number."""
        return self.step["predict"]["options"] if self.step and self.guessing else {}

    def take(self, answer: dict[str, Any]) -> bool:
        """Take the steps of an answer. True for the first one, which says where to begin."""
        self._lab = answer["lab"]
        if not self.steps:
            self.steps = list(answer["steps"])
            self.at = [step["id"] for step in self.steps].index(answer["step"])
            return True
        new = {step["id"]: step for step in answer["steps"]}
        self.steps = [new.get(step["id"], step) for step in self.steps]
        return False

    def hinted(self, answer: dict[str, Any]) -> None:
        """Take a hint."""
        for step in self.steps:
            if step["id"] == answer["step"]:
                step["hints"] = {"taken": answer["hints"], "total": answer["total"]}

    def title(self, marks: Signs) -> list[Line]:
        """Return the lab, the step and the trail, the most important first."""
        step = self.step
        if step is None:
            return [[(self.id, "strong")]]
        parts: list[Line] = [
            [(f"{self.id[:2]} {self._lab['title']}", "strong")],
            [(f"step {step['number']} of {len(self.steps)}", "plain")],
            coursefacts.trail(self.steps, self.at, marks),
        ]
        if step["standing"] == "done":
            parts.append([(f"{marks.yes} done", "good")])
        elif step["standing"] == "failed":
            parts.append([(f"{marks.no} not yet", "bad")])
        return parts

    def sources(self) -> list[Source]:
        """Return where the step's guess and checked values come from."""
        return coursefacts.step_sources(self.step) if self.step else []
