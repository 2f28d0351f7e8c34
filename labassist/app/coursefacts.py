"""The course as lines of words: what `labs`, `lab`, `check` and `hint` answer. No screen, no files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labassist.app import words
from labassist.app.markdown import drawn, inline
from labassist.app.where import JOURNAL, Source
from labassist.app.words import Line, Piece, Signs

Document = Mapping[str, Any]

ONE_LINE = 76
"""Options that are longer together stand in a line each."""

PROMPT = "$ "
"""Begins the line of a step's command."""

GREETING = (
    "Welcome. You learn to train language models here by training them: each run is real, is recorded, "
    "and can be replayed bit for bit. Enter opens the first lab, ? shows the keys."
)


def lab_sign(lab: Document, marks: Signs) -> Piece:
    """Return the sign before a lab: done, begun, not begun, faulty, or in need of another check."""
    if lab["problem"]:
        return marks.no, "bad"
    if lab["stale"]:
        return marks.alarm, "warn"
    if lab["total"] and lab["done"] == lab["total"]:
        return marks.yes, "good"
    return (marks.live, "key") if lab["done"] else (marks.open, "dim")


def lab_time(lab: Document) -> str:
    """Return the hours spent on a lab as h:mm, or those that it is expected to take."""
    spent = lab["spent"]["hours"]
    return hours(spent) if spent else f"~{hours(lab['hours'])}"


def hours(count: float) -> str:
    """Return hours as `2:12`."""
    minutes = round(count * 60)
    return f"{minutes // 60}:{minutes % 60:02d}"


def course_title(course: Document) -> list[Line]:
    """Return the week, the hours and the money of the whole course."""
    parts: list[Line] = [[(f"week {course['week']} of {course['weeks']}", "plain")]]
    parts.append([(f"{course['hours']:.1f} of ~{course['plan_hours']:.0f} h", "plain")])
    if course["money"] or course["plan_rent_hours"]:
        parts.append([(f"spent {course['money']:.2f}", "plain")])
    return parts


def next_step(lab: Document) -> Line:
    """Return the step that a lab goes on with."""
    if lab["problem"] or not lab["total"]:
        return []
    following = lab["next"]
    if following is None:
        stale = f"; {lab['stale']} to be checked again" if lab["stale"] else ""
        return [(f"all {lab['total']} steps done{stale}", "plain")]
    what = "next" if lab["done"] else "begins with"
    return [
        (f"{what} step {following['number']} of {lab['total']}, ", "plain"),
        (following["title"], "strong"),
    ]


def course_sources(course: Document) -> list[Source]:
    """Return where the course's own numbers come from."""
    return [
        Source("week", str(course["week"]), "the week of the lab that goes on, by its lab.toml"),
        Source(
            "hours",
            f"{course['hours']:.2f}",
            f"{JOURNAL}: time between the entries of the course and of its runs",
        ),
        Source("planned hours", f"{course['plan_hours']:.1f}", "the sum of `hours` in every lab.toml"),
        Source("spent", f"{course['money']:.2f}", f"{JOURNAL}: hours of runs with a price, times that price"),
    ]


# ---------------------------------------------------------------------------- one step


def trail(steps: Sequence[Document], at: int, marks: Signs) -> Line:
    """Return one sign a step, the one that is shown as the cursor."""
    line: Line = []
    for index, step in enumerate(steps):
        sign = {"done": (marks.yes, "good"), "failed": (marks.no, "bad")}.get(
            step["standing"], (marks.dot, "dim")
        )
        line.append((marks.cursor, "key") if index == at else sign)
    return line


def waits_for_guess(step: Document) -> bool:
    """Say whether a step has a question that is not answered yet."""
    return step["predict"] is not None and step["guess"] is None


def question(step: Document, marks: Signs) -> list[Line]:
    """Return the question of a step with its options or the guess, and beside it what was measured."""
    predict, guess, measured = step["predict"], step["guess"], step["measured"]
    if predict is None:
        return []
    if guess is None:
        lines: list[Line] = [[("Predict first: ", "warn"), (predict["question"], "plain")]]
        if predict["options"]:
            said: list[Line] = [
                [("  ", "plain"), (f"[{letter}]", "key"), (f" {text}", "plain")]
                for letter, text in predict["options"].items()
            ]
            if sum(map(words.length, said)) > ONE_LINE:
                return lines + said
            return [*lines, [piece for one in said for piece in one]]
        unit = f" (in {predict['unit']})" if predict["unit"] else ""
        return [*lines, [("  ", "plain"), ("enter", "key"), (f" and type your guess{unit}", "plain")]]
    own = f"{guess['value']}, {guess['text']}" if predict["options"] else guess["text"] or guess["value"]
    lines = [[(predict["question"], "dim")], [("Your guess: ", "dim"), (own, "strong")]]
    if measured is not None:
        right = measured["option"] and measured["option"] == guess["value"]
        sign: Line = []
        if measured["option"]:
            sign = [(f"{marks.yes} " if right else f"{marks.no} ", "good" if right else "warn")]
        letter = f"{measured['option']}, " if measured["option"] else ""
        lines.append([("measured: ", "dim"), *sign, (f"{letter}{measured['text']}", "strong")])
    return lines


def what_to_do(step: Document) -> list[Line]:
    """Return the command or the place of an edit, and what makes the step done."""
    lines: list[Line] = []
    if step["edit"] is not None:
        lines.append([("edit  ", "dim"), (f"{step['edit']['file']}:{step['edit']['line']}", "key")])
    if step["run"] is not None:
        lines.append([(PROMPT, "dim"), (step["run"]["line"], "key")])
    tried = step["check"] is not None or (step["run"] is not None and step["run"]["newest"])
    if step["standing"] == "open" and step["kind"] not in ("read", "predict") and not tried:
        lines.append([("done when  ", "dim"), (step["how"], "plain")])
    return lines


def page(step: Document, width: int, marks: Signs) -> list[Line]:
    """Return a step's title, its text and the hints that were taken."""
    return [[(step["title"], "strong")], [], *drawn(step["text"], width, marks), *hint_lines(step)]


def hint_lines(step: Document) -> list[Line]:
    """Return the hints that were taken."""
    taken, total = step["hints"]["taken"], step["hints"]["total"]
    lines: list[Line] = []
    for number, hint in enumerate(taken, 1):
        lines += [[], [(f"hint {number} of {total}  ", "warn"), *inline(hint)]]
    return lines


def verdict_of(step: Document, marks: Signs, brief: int = 0) -> list[Line]:
    """Return a check's answer, a line or two for each criterion: first those that wait for something.

    `brief`: what passed takes one row of so many cells, without what was expected.
    """
    check = step["check"]
    if check is None:
        return []
    if check["missing"]:
        return [[("Check ", "head"), (f"{marks.alarm} ", "warn"), (check["missing"], "plain")]]
    if not check["ok"] and step["run"] is not None and step["edit"] is not None and step["edit"]["changed"]:
        # What was found is the run's before the change.
        return [[("Check ", "head"), (f"{marks.alarm} ", "warn"), ("changed: space runs it again", "plain")]]
    lines: list[Line] = []
    if check["stale"]:
        lines.append([(f"{marks.alarm} ", "warn"), ("something changed since: c checks again", "plain")])
    for index, one in enumerate(sorted(check["criteria"], key=lambda one: bool(one["ok"]))):
        sign, kind = (marks.yes, "good") if one["ok"] else (marks.no, "bad")
        line: Line = [
            ("Check " if index == 0 else "      ", "head"),
            (f"{sign} ", kind),
            (f"{one['name']}   ", "strong"),
            (f"expected {one['expected']}   ", "plain"),
            (f"got {one['got']}   ", "plain"),
            (one["source"], "dim"),
        ]
        if brief and one["ok"]:
            del line[3]
            while len(line) > 3 and words.length(line) > brief:
                line.pop()
        lines.append(line)
    return lines


def after_check(step: Document, marks: Signs) -> Line:
    """Return what to do after a check."""
    if step["standing"] == "done":
        return [(f"{marks.yes} passed", "good"), ("; n goes on", "plain")]
    if step["check"] is not None and step["check"]["missing"]:
        return [("not yet: what is missing stands above", "plain")]
    return [("not yet: what was expected and what came out stands above", "plain")]


def waits_for(step: Document) -> Line:
    """Return what a step that is not done waits for, and the keys that do it."""
    edits = ", e edits" if step["edit"] is not None else ""
    if waits_for_guess(step):
        key = "its letter answers" if step["predict"]["options"] else "enter answers"
        said = f"its question has no answer yet: {key}"
    elif step["run"] is not None and not step["run"]["newest"] and step["check"] is None:
        said = f"it has no run yet: space runs it{edits}"
    else:
        said = f"its check has not passed: c checks{edits}"
    return [(f"{said}; : goes to any step", "plain")]


def step_sources(step: Document) -> list[Source]:
    """Return where the guess, the measured value and each checked value come from."""
    found = []
    if step["guess"] is not None:
        found.append(
            Source("your guess", step["guess"]["value"], f"{JOURNAL}, {words.clock(step['guess']['time'])}")
        )
    if step["measured"] is not None:
        found.append(Source("measured", step["measured"]["text"], step["measured"]["source"]))
    if step["check"] is not None:
        found += [Source(one["name"], one["got"], one["source"]) for one in step["check"]["criteria"]]
    return found
