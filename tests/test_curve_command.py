"""`labassist curve`: what is shown, written and drawn is what the run recorded, to the last bit."""

from __future__ import annotations

import csv
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from command import answer, labassist
from PIL import Image

from labassist.ledger import curves
from labassist.ledger.canonical import decode_number
from labassist.ledger.store import Ledger

NAN = "nan:fff8000000000123"


@pytest.fixture
def lab(little_lab: Path) -> Path:
    """It is only read here, or copied."""
    return little_lab


@pytest.fixture
def poisoned(lab: Path) -> str:
    """The run with a nan."""
    return str(answer("runs", cwd=lab)["runs"][0]["id"])


def bits(value: float) -> bytes:
    return struct.pack(">d", value)


def test_the_csv_holds_every_bit_of_the_joined_curve(lab: Path, tmp_path: Path) -> None:
    run = answer("runs", cwd=lab)["runs"][2]["id"]
    labassist("curve", run, "--csv", str(tmp_path / "curve.csv"), cwd=lab)
    with Ledger.open(lab / "ledger") as ledger:
        curve = curves.joined(ledger, run)
    rows = list(csv.DictReader((tmp_path / "curve.csv").open()))
    assert [int(row["step"]) for row in rows] == list(range(1, 61)) == list(curve.steps)
    for row in rows:
        step = int(row["step"])
        assert row["batch"] == curve.series["batch"][step]
        assert bits(float(row["loss"])) == bits(float(curve.series["loss"][step]))
        assert row["val_loss"] == ("" if step % 10 else repr(curve.series["val_loss"][step]))
    segment = labassist("curve", run, "loss", "--segment", "--csv", "-", cwd=lab).stdout.splitlines()
    assert segment[0] == "step,loss" and segment[1].startswith("31,") and len(segment) == 31


@pytest.mark.fault
def test_a_nan_keeps_its_bits_and_breaks_the_line(lab: Path, poisoned: str) -> None:
    lines = labassist("curve", poisoned, "loss", "--csv", "-", cwd=lab).stdout.splitlines()
    assert lines[7] == f"7,{NAN}"
    assert bits(decode_number(lines[7].split(",")[1])).hex() == NAN[4:]
    found = answer("curve", poisoned, cwd=lab)
    assert found["series"]["loss"][6] == [7, NAN] and found["steps"] == 40
    assert set(found["series"]) == {"loss", "val_loss", "batch"}
    assert "!" in labassist("curve", poisoned, cwd=lab).stdout


def test_the_chart_fits_and_has_an_ascii_form(lab: Path, poisoned: str) -> None:
    shown = labassist("curve", poisoned, cwd=lab, env={"PYTHONIOENCODING": "utf-8"}).stdout
    assert shown.startswith("loss ⠒⠒") and "val_loss" in shown.splitlines()[0]
    assert all(len(line) <= 80 for line in shown.splitlines()) and "step 40" in shown
    plain = labassist("--ascii", "curve", poisoned, "--log", cwd=lab).stdout
    assert plain.isascii()


def test_the_picture_shows_the_series(lab: Path, poisoned: str, tmp_path: Path) -> None:
    path = tmp_path / "curve.png"
    labassist("curve", poisoned, "loss", "val_loss", "--png", str(path), cwd=lab)
    with Image.open(path) as image:
        assert image.size == (1200, 630)
        colours = {colour for _count, colour in image.convert("RGB").getcolors(1 << 20) or []}
    assert {(31, 90, 180), (200, 80, 20)} <= colours
    done = labassist("curve", poisoned, "--png", "no/such/folder.png", cwd=lab, status=2)
    assert "the picture cannot be written" in done.stderr


def test_without_pillow_one_line_says_what_to_install(lab: Path, poisoned: str, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['PIL'] = None\n"
        "from labassist.cli.main import main\n"
        f"sys.exit(main(['curve', {poisoned!r}, '--png', {str(tmp_path / 'x.png')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=lab, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "pip install 'labassist[plot]'" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("los",), "did you mean loss"),
        (("batch",), "is a digest and cannot be drawn"),
        (("--rank", "3"), "no curve of rank 3; there is 0"),
    ],
)
def test_what_is_not_there_is_one_line(lab: Path, poisoned: str, words: tuple[str, ...], says: str) -> None:
    done = labassist("curve", poisoned, *words, cwd=lab, status=2)
    assert says in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.fault
def test_a_line_that_was_cut_is_left_out_and_one_that_was_edited_is_named(
    lab: Path, poisoned: str, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(lab, tmp_path / "lab", symlinks=True))
    path = copy / "ledger" / "runs" / poisoned / "metrics-rank0.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    assert answer("curve", poisoned, cwd=copy)["steps"] == 39
    path.write_bytes(whole.replace(b'"step": 3,', b'"step": x,'))
    assert "line 3: is no row of a curve" in labassist("curve", poisoned, cwd=copy, status=2).stderr


@pytest.mark.fault
def test_what_is_not_as_it_was_sealed_is_never_shown_or_handed_out_as_if_it_were(
    lab: Path, poisoned: str, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(lab, tmp_path / "lab", symlinks=True))
    path = copy / "ledger" / "runs" / poisoned / "metrics-rank0.jsonl"
    assert "warning" not in labassist("curve", poisoned, cwd=copy).stderr
    path.write_bytes(path.read_bytes().replace(b'"step": 3, "t": 0', b'"step": 3, "t": 1'))
    table, page = str(tmp_path / "table"), str(tmp_path / "page.html")
    told = "the bytes that were sealed at the end have changed; see labassist audit"
    for words in (("curve", poisoned), ("export", poisoned, "--to", "csv", "-o", table)):
        assert told in labassist(*words, cwd=copy).stderr
    shutil.rmtree(path.parent)
    assert "cannot be read" in labassist("curve", poisoned, cwd=copy, status=2).stderr
    assert "cannot be read" in labassist("export", poisoned, "--to", "html", "-o", page, cwd=copy).stderr
    assert "is not what was recorded: cannot be read" in Path(page).read_text()
