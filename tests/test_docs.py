"""What the pages show is so: every command is read by the real command line, every link and path leads somewhere."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from labassist import content
from labassist.cli.main import build_parser, main, parse
from labassist.course.lint_static import anchors
from labassist.course.load import Course
from labassist.ledger.store import Ledger
from labassist.runs.jobs import load_job, resolve
from labassist.workspace import Workspace

ROOT = content.root()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += [ROOT / part / "README.md" for part in ("labs", "ledger", "templates")]
STEPS = sorted((ROOT / "labs").glob("*/steps/*.md"))
TREE = ("labassist/", "labs/", "templates/", "tests/", "bench/", "docs/", "ledger/")
"""What a path in a page begins with where it is one of this repository; a file of a ledger is none."""
MADE = ("labassist/_content", "ledger/aside/", "ledger/code.git", "templates/prices.toml")
"""Paths of a wheel or of a workspace, which a checkout does not have."""


def lines(pages: Sequence[Path] = PAGES) -> Iterator[tuple[str, str]]:
    """Yield each line of each page, with its place; one that ends in a backslash has the next one with it."""
    for page in pages:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for number, line in enumerate(text.split("\n"), 1):
            yield f"{page.relative_to(ROOT)}:{number}", line


def parsers(
    parser: argparse.ArgumentParser, name: str = "labassist"
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, inner in action.choices.items():
                yield from parsers(inner, f"{name} {word}")


PARSER = build_parser()
COMMANDS = dict(parsers(PARSER))


@pytest.fixture(autouse=True)
def one_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Building it anew for each command would take most of the time."""
    monkeypatch.setattr("labassist.cli.main.build_parser", lambda: PARSER)


def shown() -> list[tuple[str, str]]:
    """Return each command that stands on a line of its own, in a page, a step or at the end of a help."""
    everywhere = lines([*PAGES, *STEPS])
    found = [
        (place, line.strip(" $")) for place, line in everywhere if re.match(r" {2,}(\$ )?labassist \S", line)
    ]
    for name, parser in COMMANDS.items():
        examples = (parser.epilog or "").partition("example:\n")[2].split("\n")
        found += [
            (f"{name} --help", line.strip()) for line in examples if line.strip().startswith("labassist")
        ]
    return found


@pytest.mark.parametrize(("place", "command"), shown())
def test_a_command_that_is_shown_is_one(place: str, command: str) -> None:
    words = shlex.split(command, comments=True)[1:]
    cut = next((at for at, word in enumerate(words) if word in ("&&", "|", ">")), len(words))
    args = parse(words[:cut])
    job = getattr(args, "job", None)
    if job and not job.isupper():
        resolve(
            load_job(Workspace(ROOT), job),
            getattr(args, "profile", None),
            None,
            getattr(args, "sets", None) or [],
        )
    assert all(re.fullmatch(r"\[LAB\]|\d\d[\w-]*", name) for name in getattr(args, "lint_labs", []))
    lab = getattr(args, "lab", None)
    if lab and not lab.startswith("20"):  # a lab of the reader's own
        found, step = Course.load(Workspace(ROOT)).find(lab)
        if getattr(args, "predict", None):
            assert step is not None and step.predict is not None, (
                f"{place}: there is nothing to guess at {lab}"
            )
            assert args.predict in step.predict.options


def quoted() -> list[tuple[str, str]]:
    """Return what stands in backticks as a command, whole or in part."""
    return [
        (place, command) for place, line in lines() for command in re.findall(r"`(labassist [^`…]*)`", line)
    ]


@pytest.mark.parametrize(("place", "command"), quoted())
def test_a_command_that_is_named_is_one(place: str, command: str) -> None:
    words = shlex.split(command)
    named = next(" ".join(words[:at]) for at in (3, 2, 1) if " ".join(words[:at]) in COMMANDS)
    assert named != "labassist" or words[1].startswith("-"), f"{place}: there is no {command}"
    known = COMMANDS[named]._option_string_actions
    for word in words[: words.index("--")] if "--" in words else words:
        assert not word.startswith("--") or word.partition("=")[0] in known, f"{place}: {named} has no {word}"


def test_every_link_and_path_leads_somewhere() -> None:
    wrong = []
    for place, line in lines():
        folder = (ROOT / place.partition(":")[0]).parent
        for target in re.findall(r"\]\(([^)\s]+)\)", line):
            name, _, anchor = target.partition("#")
            file = folder / name if name else ROOT / place.partition(":")[0]
            if not file.exists() or (anchor and anchor not in set(anchors(file))):
                wrong.append(f"{place}: {target}")
        for path in re.findall(r"`(?:python )?([\w./-]+)[^`]*`", line):
            if path.startswith(TREE) and not path.startswith(MADE) and not (ROOT / path).exists():
                wrong.append(f"{place}: {path}")
    assert not wrong


def test_what_may_stand_after_two_hyphens_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    taking = [name for name, parser in COMMANDS.items() if parser.get_default("takes_rest")]
    assert taking == ["labassist run", "labassist ckpt prove", "labassist serve"]
    for name in taking:
        with pytest.raises(SystemExit):
            main([*name.split()[1:], "--help"])
        assert "after --:\n  " in capsys.readouterr().out


def test_a_log_is_one_json_document_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workspace = Workspace(tmp_path)
    (tmp_path / "labs").mkdir()
    ledger = Ledger.open(workspace.ledger, create=True)
    ledger.write("start", {"id": "20260101-000000-abcdef", "state": "finished", "config": {}})
    folder = ledger.run_folder("20260101-000000-abcdef")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.txt").write_text("step 1\nlast line without an end")
    assert main(["logs", "@last", "--json", "--workspace", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "run": "20260101-000000-abcdef",
        "lines": ["step 1", "last line without an end"],
    }


def test_a_lab_that_is_named_is_one() -> None:
    there = {folder.name[:2] for folder in (ROOT / "labs").iterdir() if folder.is_dir()}
    files = [*PAGES[:-1], *STEPS, *(ROOT / "labs").glob("*/lab.toml")]
    named = [
        (place, number) for place, line in lines(files) for number in re.findall(r"\b[Ll]ab (\d\d)\b", line)
    ]
    assert named
    assert [(place, number) for place, number in named if number not in there] == []
