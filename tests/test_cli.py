"""The command line as a person and a script meet it, each in a process of its own."""

from __future__ import annotations

import json
import math
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import labassist
from labassist.cli.main import build_parser, main, parse
from labassist.cli.output import emit, paint, say, table, to_json
from labassist.cli.parsing import UsageError
from labassist.errors import AnswerNo
from labassist.ledger.verdict import TOLERANCES
from labassist.workspace import Workspace


def run(*words: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "labassist", *words],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )


def commands() -> dict[str, object]:
    actions = build_parser()._subparsers._group_actions  # type: ignore[union-attr]
    return dict(actions[0].choices)  # type: ignore[arg-type]


def test_a_tolerance_that_there_is_not_is_refused_before_anything_is_replayed() -> None:
    with pytest.raises(UsageError, match="unknown value 'fp33'"):
        parse(["replay", "@last", "--tolerance", "fp33"])
    assert all(parse(["replay", "@last", "--tolerance", name]).tolerance == name for name in TOLERANCES)


def test_version_and_help() -> None:
    assert run("--version").stdout == f"labassist {labassist.__version__}\n"
    helped = run("--help")
    assert helped.returncode == 0
    assert "new" in helped.stdout
    assert "example:" in helped.stdout


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_help_ends_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    _, _, example = capsys.readouterr().out.partition("\nexample:\n")
    assert example.startswith(f"  labassist {name}")


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_command_takes_the_common_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    text = capsys.readouterr().out
    assert all(option in text for option in ("--json", "--workspace DIR", "--debug"))


def test_common_options_work_before_and_after_the_command() -> None:
    for words in (
        ["--json", "--workspace", "W", "new", "d"],
        ["new", "--json", "--workspace", "W", "d"],
        ["--json", "new", "d", "--workspace=W"],
    ):
        args = parse(words)
        assert (args.json, args.workspace, args.debug, args.folder) == (True, "W", False, "d")
    assert parse(["new", "d"]).workspace is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nwe", "x"], "labassist: unknown command 'nwe', did you mean new?; see labassist --help"),
        (["new"], "labassist new: the following arguments are required: DIR; see labassist new --help"),
        (["new", "a", "b"], "unrecognized arguments: b"),
        (["new", "a", "--jso"], "unrecognized arguments: --jso"),
        (["--workspace"], "expected one argument"),
        (["new", "--", "a", "b"], "unrecognized arguments: b"),
    ],
)
def test_usage_errors_are_one_line_and_status_2(words: list[str], says: str) -> None:
    result = run(*words)
    assert result.returncode == 2
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_new(tmp_path: Path) -> None:
    result = run("new", "my lab", cwd=tmp_path)
    assert result.returncode == 0
    assert result.stdout.startswith(f"made the workspace {tmp_path}/my lab\nnext: cd 'my lab'")
    assert Workspace.find(tmp_path / "my lab")


def test_new_json(tmp_path: Path) -> None:
    result = run("new", "lab", "--json", cwd=tmp_path)
    document = json.loads(result.stdout)
    assert document["workspace"] == str(tmp_path / "lab")
    assert set(document) == {"workspace", "commit", "jobs", "notes", "added"}


def test_new_where_something_is(workspace: Workspace) -> None:
    result = run("new", str(workspace.root))
    assert result.returncode == 2
    assert result.stderr.startswith(f"labassist: {workspace.root}: this is a workspace already; ")
    assert result.stderr.count("\n") == 1


def test_new_without_git(tmp_path: Path) -> None:
    result = run("new", str(tmp_path / "lab"), PATH=str(tmp_path))
    assert result.returncode == 2
    assert "install git" in result.stderr


def test_new_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("new", str(tmp_path / "file" / "lab"))
    assert result.returncode == 2
    assert result.stderr.startswith(f"labassist: {tmp_path}/file/lab: Not a directory")
    assert result.stderr.count("\n") == 1


def raising(error: BaseException, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("labassist.workspace.new", fail)
    return main(["new", "x", *words])


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (AnswerNo("no", where="here", mend="mend it"), 1, "labassist: here: no; mend it"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (PermissionError(13, "Permission denied", "/x"), 2, "labassist: /x: Permission denied"),
        (
            ValueError("a\nb"),
            2,
            "labassist: internal error, a bug in labassist: ValueError: a b; run again with",
        ),
    ],
)
def test_errors_become_one_line_and_a_status(
    error: BaseException,
    status: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert raising(error, monkeypatch) == status
    told = capsys.readouterr().err
    assert told.startswith(says)
    assert told.count("\n") == 1


def test_debug_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert raising(ValueError("x"), monkeypatch, "--debug") == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as gone:
        result = subprocess.run(
            [sys.executable, "-m", "labassist", "new", "x", "--help"],
            stdout=gone,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert result.stderr == b""


def test_json_encodes_what_json_lacks() -> None:
    document = json.loads(
        to_json({"a": [math.nan, math.inf, -math.inf, 0.1], "p": Path("x"), "t": (1,), "n": None})
    )
    assert document == {"a": ["nan:7ff8000000000000", "inf", "-inf", 0.1], "p": "x", "t": [1], "n": None}


def test_json_survives_names_that_are_not_text() -> None:
    assert json.loads(to_json({"name": os.fsdecode(b"\xff")})) == {"name": "\udcff"}


def test_table_is_whole_where_it_fits_and_cut_where_it_does_not() -> None:
    rows = [["a", 1, "short"], ["b", 22, "a very long note\nover two lines"]]
    whole = table(["run", "steps", "note"], rows, width=80)
    assert whole.splitlines() == [
        "run  steps  note",
        "a        1  short",
        "b       22  a very long note over two lines",
    ]
    cut = table(["run", "steps", "note"], rows, width=24).splitlines()
    assert max(map(len, cut)) == 24
    assert cut[2].endswith("~")
    assert table(["run"], []) == "run"


def test_table_counts_wide_signs_as_two_columns() -> None:
    lines = table(["n", "x"], [["学习率", 1], ["lr", 2]], width=80).splitlines()
    assert lines == ["n       x", "学习率  1", "lr      2"]


def test_paint_only_on_a_terminal_that_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert paint("x", "red") == "x"
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        assert paint("x", "red") == "\033[31mx\033[0m"
        monkeypatch.setenv("NO_COLOR", "1")
        assert paint("x", "red") == "x"
        monkeypatch.delenv("NO_COLOR")
        monkeypatch.setenv("TERM", "dumb")
        assert paint("x", "red") == "x"
    os.close(leader)


def test_without_a_command_or_a_terminal_it_says_what_works(workspace: Workspace) -> None:
    result = run(cwd=workspace.root)
    assert result.returncode == 2
    assert "needs a terminal" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("chat RUN --system S hello", "message", "hello"),
        ("chat --system S RUN hello", "message", "hello"),
        ("chat RUN hello --system S", "message", "hello"),
        ("chat RUN --system S", "message", None),
        ("chat RUN -- -5", "message", "-5"),
        ("curve RUN --csv - loss lr", "series", ["loss", "lr"]),
        ("curve RUN loss --csv - lr", "series", ["loss", "lr"]),
        ("export A --to html B", "runs", ["A", "B"]),
        ("prune A --dry-run B", "runs", ["A", "B"]),
        ("audit --json RUN", "run", "RUN"),
        ("run --seed 3 01-first-loop/train --profile tiny", "job", "01-first-loop/train"),
    ],
)
def test_options_may_stand_before_an_optional_argument(words: str, name: str, value: object) -> None:
    assert getattr(parse(words.split()), name) == value


@pytest.mark.fault
def test_a_note_cannot_steer_the_terminal_that_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    """A run that was imported has its notes, reasons and file names from somebody else."""
    note = "a\tb\n\x1b]0;title\x07 \x1b[31m \x9b2J \r" + "字\u3000"
    emit({}, False, lambda: note)
    say(note)
    shown = capsys.readouterr()
    expected = "a\tb\n\\x1b]0;title\\x07 \x1b[31m \\x9b2J \\r字\u3000\n"
    assert shown.out == shown.err == expected


def test_a_word_too_many_is_still_one() -> None:
    with pytest.raises(UsageError, match="unrecognized arguments: there"):
        parse(["chat", "RUN", "--system", "S", "hello", "there"])
    with pytest.raises(UsageError, match="the following arguments are required: URL"):
        parse(["chat", "--system", "S"])
