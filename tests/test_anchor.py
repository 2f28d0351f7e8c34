"""An anchor that was kept elsewhere shows what the ledger alone cannot: an end that was cut off and rewritten."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from command import answer, labassist

from labassist.ledger.store import Ledger

pytestmark = pytest.mark.ci


@pytest.fixture
def lab(little_lab: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(little_lab, tmp_path / "lab", symlinks=True))


@pytest.mark.slow
def test_an_anchor_is_printed_written_and_found_again(lab: Path, tmp_path: Path) -> None:
    kept = tmp_path / "anchor.txt"
    made = answer("audit", "--anchor", "-o", str(kept), cwd=lab)
    assert made["anchor"]["hash"] == made["head"]
    assert kept.read_text() == made["anchor"]["line"] + "\n"
    labassist("note", "@last", "the ledger goes on", cwd=lab)
    for given in (str(kept), kept.read_text().strip()):
        again = answer("audit", "--anchor", given, cwd=lab)
        assert again["ok"] and again["checked"]["anchors"] == 1
        assert again["anchor"]["line"] == made["anchor"]["line"]
    assert answer("audit", cwd=lab)["anchor"] is None


@pytest.mark.slow
@pytest.mark.fault
def test_a_ledger_that_was_cut_and_written_again_fails_its_anchor_only(lab: Path, tmp_path: Path) -> None:
    """Whoever rewrites every witness inside the ledger makes it whole again; the anchor is outside."""
    kept = tmp_path / "anchor.txt"
    ledger = lab / "ledger"
    labassist("note", "@last", "what really happened", cwd=lab)
    answer("audit", "--anchor", "-o", str(kept), cwd=lab)
    lines = (ledger / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (ledger / "journal.jsonl").write_bytes(b"".join(lines[:-1]))
    (ledger / "head").unlink()
    (ledger / "view.json").unlink()
    for path in ledger.glob("runs/*/positions.jsonl"):
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    cut = labassist("audit", "--anchor", str(kept), cwd=lab, status=1).stdout
    assert f"only {len(lines) - 1} are there" in cut
    with Ledger.open(ledger) as opened:
        opened.change("note", opened.find("@last")["id"], lambda run: {**run, "note": "something nicer"})
        opened.save_view()
    assert answer("audit", cwd=lab)["ok"] is True
    found = answer("audit", "--anchor", str(kept), cwd=lab, status=1)
    (problem,) = found["problems"]
    assert (problem["code"], problem["line"]) == ("anchor-missing", len(lines))
    assert "another entry stands there" in problem["message"]
    before = kept.read_bytes()  # the only witness: a new anchor does not take its place
    refused = labassist("audit", "--anchor", "-o", str(kept), cwd=lab, status=2)
    assert f"see labassist audit --anchor {kept}" in refused.stderr and kept.read_bytes() == before


@pytest.mark.slow
def test_a_signed_anchor_says_who_signed_and_notices_a_change(lab: Path, tmp_path: Path) -> None:
    key, kept = tmp_path / "key", tmp_path / "anchor.txt"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    labassist("audit", "--anchor", "-o", str(kept), "--sign", str(key), cwd=lab)
    assert "signature with ED25519 key" in labassist("audit", "--anchor", str(kept), cwd=lab).stderr
    kept.write_text(kept.read_text().replace("-anchor ", "-anchor  ").replace("  ", " ") + "more\n")
    assert "does not fit the anchor" in labassist("audit", "--anchor", str(kept), cwd=lab, status=2).stderr


@pytest.mark.fault
def test_an_anchor_takes_the_place_of_an_anchor_only_and_of_its_signature(lab: Path, tmp_path: Path) -> None:
    key, kept, own = tmp_path / "key", tmp_path / "anchor.txt", tmp_path / "own.txt"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    labassist("audit", "--anchor", "-o", str(kept), "--sign", str(key), cwd=lab)
    labassist("audit", "--anchor", "-o", str(kept), cwd=lab)
    assert answer("audit", "--anchor", str(kept), cwd=lab)["ok"] is True
    own.write_text("what I must not forget\n")
    refused = labassist("audit", "--anchor", "-o", str(own), cwd=lab, status=2)
    assert "this is no anchor; name another" in refused.stderr
    assert own.read_text() == "what I must not forget\n"


@pytest.mark.slow
def test_an_anchor_in_a_git_note_is_read_back_from_there(lab: Path) -> None:
    labassist("audit", "--anchor", "--git-note", cwd=lab)
    shown = subprocess.run(
        ["git", "notes", "--ref=labassist", "show"], cwd=lab, check=True, capture_output=True, text=True
    ).stdout
    assert answer("audit", "--anchor", shown.strip(), cwd=lab)["ok"] is True


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--anchor", "nowhere.txt"), "cannot read the anchor"),
        (("--anchor", "little.py"), "this is no anchor"),
        (("-o", "x.txt"), "only a new anchor is written"),
        (("--anchor", "--sign", "k"), "name it with -o FILE"),
        (("--anchor", "-o", "no/such/folder.txt"), "cannot be written"),
    ],
)
def test_bad_anchors_are_one_line(lab: Path, words: tuple[str, ...], says: str) -> None:
    done = labassist("audit", *words, cwd=lab, status=2)
    assert says in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.fault
def test_a_damaged_ledger_is_not_anchored(lab: Path, tmp_path: Path) -> None:
    path = lab / "ledger" / "journal.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"schema":1', b'"schema":0', 1))
    done = labassist("audit", "--anchor", "-o", str(tmp_path / "x"), cwd=lab, status=2)
    assert "not anchored" in done.stderr and not (tmp_path / "x").exists()
