"""lab.toml is read strictly, and a fault is one line that names file and line; other labs go on."""

from __future__ import annotations

from pathlib import Path

import pytest
from course_lab import FILES, ID, TOML, folders, loaded, write

from labassist.course.load import Course, text
from labassist.course.toml_lines import line_of
from labassist.errors import InputError
from labassist.workspace import Workspace


@pytest.fixture
def bare(tmp_path: Path) -> Workspace:
    return folders(tmp_path)


def line(part: str) -> int:
    """Return on which line of the small lab a text stands."""
    return next(at for at, one in enumerate(TOML.split("\n"), 1) if part in one)


def test_a_lab_is_read_whole(bare: Workspace) -> None:
    write(bare)
    _, lab = loaded(bare)
    assert (lab.id, lab.title, lab.weeks, lab.hours, lab.problem) == (ID, "A small lab", (2, 3), 0.5, "")
    assert [step.kind for step in lab.steps] == ["read", "predict", "run", "run", "edit"]
    fast, double = lab.steps[3], lab.steps[4]
    assert fast.predict and fast.predict.options == {"a": "fall", "b": "rise"}
    assert fast.run and fast.run.job == f"{ID}/train"
    assert fast.run.words == ("run", f"{ID}/train", "--profile", "tiny", "--set", "optim.lr=2.0")
    assert double.check and double.check.alter[0].put == "* 3" and double.check.seconds == 20


@pytest.mark.fault
@pytest.mark.parametrize(
    ("old", "new", "at", "words"),
    [
        ("title = \"Bet\"", "titel = \"Bet\"", 'title = "Bet"', ["unknown key 'titel'", "did you mean title"]),
        ('kind = "read"', 'kind = "reed"', 'kind = "read"', ["unknown kind 'reed'", "did you mean read"]),
        ("weeks = [2, 3]", "weeks = [3, 2]", "weeks", ["weeks must be two week numbers"]),
        ("hours = 0.5", 'hours = "half"', "hours", ["hours must be a number"]),
        ('id = "bet"', 'id = "Bet one"', 'id = "bet"', ["cannot be a step's id"]),
        ('id = "double"', 'id = "fast"', 'id = "double"', ["a second step 'fast'"]),
        ('id = "intro"', 'id = "other"', 'id = "intro"', ["steps/other.md is not there"]),
        ('unit = "nats" }', 'unti = "nats" }', "unit =", ["unknown key 'unti'", "did you mean unit"]),
        ('options = { a = "fall", b = "rise" }', 'options = { a = "fall" }', "options", ["two or more letters"]),
        ('set = ["optim.lr=2.0"]', "set = 2", "optim.lr=2.0", ["set must be a list of texts"]),
        ('seconds = 20', 'seconds = 0', "seconds", ["a check needs some time"]),
        ('file = "double.py", find = "* 2", put = "* 3"', 'series = "loss", file = "double.py"', "4 becomes", ["one quantity"]),
        (', by = -1.0', '', "by = -1.0", ["needs 'by'"]),
        ('edit = { file = "double.py", find = "your turn" }', "", 'id = "double"', ["needs a table 'edit'"]),
        ("[[steps]]\nid = \"bet\"", "[[steps]\nid = \"bet\"", 'id = "bet"', ["not valid TOML"]),
        ("title = \"A small lab\"\n", "", "title", ["title is missing"]),
    ],
)  # fmt: skip
def test_a_fault_is_named_with_its_line_and_the_other_labs_work(
    bare: Workspace, old: str, new: str, at: str, words: list[str]
) -> None:
    write(bare, "91-good")
    assert TOML.count(old) == 1, old
    write(bare, lab_toml=TOML.replace(old, new))
    course = Course.load(bare)
    bad = next(lab for lab in course.labs if lab.id == ID)
    expected = {
        '[[steps]]\nid = "bet"': line(at) - 1,
        "[[steps]]": 0,
        'edit = { file = "double.py", find = "your turn" }': line(at) - 1,
    }.get(old, line(at))
    assert bad.problem.startswith(f"labs/{ID}/lab.toml:{expected}: "), bad.problem
    assert "\n" not in bad.problem and bad.steps == ()
    for word in words:
        assert word in bad.problem
    with pytest.raises(InputError, match="lab.toml"):
        course.lab(ID)
    assert len(course.lab("91").steps) == 5


@pytest.mark.fault
def test_a_lab_that_is_no_text_is_a_fault_too(bare: Workspace) -> None:
    (write(bare) / "lab.toml").write_bytes(b'title = "\xff"\n')
    assert "not UTF-8" in next(lab for lab in Course.load(bare).labs if lab.id == ID).problem


def test_a_line_is_found_in_headers_inline_tables_and_arrays() -> None:
    toml = 'a = """\nb = 1\n"""\n[t]\nb = 2\n[[s]]\nx = 1\n[[s]]\n[s.c]\nlist = [\n  { k = 1 },\n  { k = 2, q = 3 },\n]\n'
    assert line_of(toml, ("b",)) == 1  # it stands inside a text only
    assert line_of(toml, ("t", "b")) == 5
    assert line_of(toml, ("s", 0, "x")) == 7
    assert line_of(toml, ("s", 1)) == 8
    assert line_of(toml, ("s", 1, "c", "list", 1, "k")) == 12
    assert line_of(toml, ("s", 1, "c", "list", 1, "q")) == 12
    assert line_of(toml, ("s", 1, "c", "gone")) == 9


def test_names_may_be_short_and_a_wrong_one_names_the_nearest(bare: Workspace) -> None:
    write(bare)
    write(bare, "91-other")
    course = Course.load(bare)
    assert course.lab("90").id == ID
    assert course.lab("90").short == "90"
    assert course.find("90/4")[1] == course.find("90-small/fast")[1]
    assert course.find("90")[1] is None
    with pytest.raises(InputError, match="means 90-small, 91-other"):
        course.lab("9")
    write(bare, "90-too")
    assert Course.load(bare).lab(ID).short == ID, "what is printed must be what can be typed"
    with pytest.raises(InputError, match="did you mean fast"):
        course.find("90/fats")
    with pytest.raises(InputError, match="no step '6'"):
        course.find("90/6")
    with pytest.raises(InputError, match="no lab '77'"):
        course.lab("77")


def test_the_twin_is_read_where_it_is_there(bare: Workspace) -> None:
    write(bare)
    _, lab = loaded(bare)
    assert text(lab.steps[0], "zh") == FILES["steps/intro.zh.md"]
    assert text(lab.steps[0]) == FILES["steps/intro.md"]
    assert text(lab.steps[1], "zh") == FILES["steps/bet.md"]


def test_an_edit_opens_at_its_line(bare: Workspace) -> None:
    folder = write(bare)
    course, lab = loaded(bare)
    assert course.place(lab, lab.steps[4]) == (folder / "double.py", 5)
    (folder / "double.py").write_text("done\n")
    assert course.place(lab, lab.steps[4])[1] == 1


def test_the_packages_lab_goes_before_a_folder_of_its_name(bare: Workspace) -> None:
    from labassist import content

    for path in sorted((content.root() / "labs").glob("*/lab.toml")):
        write(bare, path.parent.name)
        found = next(lab for lab in Course.load(bare).labs if lab.id == path.parent.name)
        assert found.folder == path.parent
        return
    pytest.skip("this package has no labs yet")


def test_loading_the_course_imports_nothing_heavy(tmp_path: Path) -> None:
    from test_imports import loaded as heavy

    assert heavy("import labassist.course.load, labassist.course.model") == set()
    assert heavy("import labassist.course.progress") <= {"tinydb", "msgspec"}
