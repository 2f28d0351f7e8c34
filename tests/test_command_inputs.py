"""What a command reads: inputs and files too large, ignored by git, changed since, or piped in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from command import answer, labassist, run_folder
from own_command import RECORDED, own_lab, run  # noqa: F401 - a fixture

from labassist.ledger.code import HASH_LIMIT


def test_a_file_too_large_to_be_kept_is_said_once_at_the_start_and_before_a_replay(lab: Path) -> None:
    for name, size in (("a.bin", 17), ("big.bin", 18)):
        with (lab / name).open("wb") as file:
            file.truncate(size * 2**20)
    words = ("run", "--out", "made.txt", "--", "sh", "-c", "echo made > made.txt")
    started = labassist(*words, cwd=lab)
    (line,) = [line for line in started.stderr.splitlines() if "too large" in line]
    assert line.startswith(
        "note: big.bin and 1 more (35.0 MiB together) are too large to be kept with the run:"
    )
    assert "a replay needs them unchanged at the same place" in line and ".gitignore" in line
    quiet = labassist("replay", "@last", cwd=lab)
    assert "by its hash" not in quiet.stderr and quiet.stdout.startswith("BITWISE")
    (lab / "a.bin").unlink()
    with (lab / "big.bin").open("r+b") as file:
        file.write(b"changed")
    said = labassist("replay", "@last", cwd=lab).stderr
    assert "preflight: a.bin: recorded by its hash, here missing (noted)" in said
    assert "preflight: big.bin: recorded by its hash, here changed (noted)" in said
    assert "note: recorded by its hash and not in the replay's copy: a.bin and 1 more" in said
    (lab / "big.bin").unlink()
    assert "too large" not in labassist(*words, cwd=lab).stderr


def test_of_a_file_too_large_to_be_hashed_only_name_and_size_are_claimed(lab: Path) -> None:
    with (lab / "huge.bin").open("wb") as file:
        file.truncate(HASH_LIMIT + 1)  # with nothing in it: it takes no room
    words = ("run", "--out", "made.txt", "--", "sh", "-c", "echo made > made.txt")
    (line,) = [line for line in labassist(*words, cwd=lab).stderr.splitlines() if "too large" in line]
    assert line.startswith(
        "note: huge.bin (1,024.0 MiB) is too large to be hashed at each start: only name and size"
    )
    assert "read_order().input" in line
    said = labassist("replay", "@last", cwd=lab)
    assert "note: recorded by its name and size and not in the replay's copy: huge.bin" in said.stderr
    with (lab / "huge.bin").open("r+b") as file:
        file.truncate(HASH_LIMIT + 2)
    said = labassist("replay", "@last", cwd=lab)
    assert "preflight: huge.bin: recorded by its name and size, here changed (noted)" in said.stderr
    (lab / "huge.bin").unlink()


def test_an_input_from_the_ledger_makes_no_part_of_a_ledger_in_the_replays_copy(lab: Path) -> None:
    made = run(lab, "--", "python", "make.py")
    place = f"ledger/runs/{made['id']}/order.json"
    (lab / "from.py").write_text(
        "from pathlib import Path\nfrom labassist import record\n"
        f"path = record.read_order().input('made', {place!r})\nprint(Path(path).stat().st_size, Path('ledger/runs').exists())\n"
    )
    run(lab, "--", "python", "from.py")
    replayed = answer("replay", "@last", cwd=lab, status=5)["run"]
    size = (lab / place).stat().st_size
    assert (run_folder(lab, {"id": replayed}) / "log.txt").read_text() == f"{size} False\n"


def test_an_input_that_was_changed_since_is_said_before_a_replay(lab: Path) -> None:
    (lab / "data.bin").write_bytes(bytes(5 * 2**20))
    (lab / ".gitignore").write_text((lab / ".gitignore").read_text() + "data.bin\n")
    (lab / "reads.py").write_text(
        "from labassist import record\nrecord.read_order().input('data', 'data.bin')\n"
    )
    run(lab, "--", "python", "reads.py")
    (lab / "data.bin").write_bytes(bytes(5 * 2**20 - 1) + b"x")
    found = answer("replay", "@last", cwd=lab, status=6)
    assert found["likely_causes"] == ["input data: recorded data.bin, here changed"]


def test_what_is_piped_in_is_said_not_to_reach_the_command(lab: Path) -> None:
    words = [sys.executable, "-m", "labassist", "run", "--", "sh", "-c", "wc -c"]
    (lab / "piped.txt").write_text("words")
    (lab / "empty.txt").write_text("")
    with (lab / "piped.txt").open() as file:
        said = subprocess.run(words, cwd=lab, stdin=file, capture_output=True, text=True, check=True).stderr
    assert "note: what is piped in does not reach the command" in said and "< FILE'" in said
    said = subprocess.run(words, cwd=lab, input="words", capture_output=True, text=True, check=True).stderr
    assert "note: what is piped in" in said
    with (lab / "empty.txt").open() as file:
        said = subprocess.run(words, cwd=lab, stdin=file, capture_output=True, text=True, check=True).stderr
    assert "piped" not in said


LISTS = """\
import os, pathlib
from labassist import record
os.chdir(pathlib.Path(__file__).parent)
order = record.read_order()
shards = sorted(pathlib.Path("shards").glob("*.bin"))
read = [order.input(shard.name, shard).read_bytes() for shard in shards]
recorder = record.start(order=order, total_steps=len(read))
for step, part in enumerate(read, 1):
    recorder.record(step, loss=float(len(part)))
recorder.finish(len(read))
"""


def test_inputs_that_git_ignores_are_found_by_a_replay_whose_script_lists_their_folder(lab: Path) -> None:
    shards = lab / "deep" / "shards"
    shards.mkdir(parents=True)
    for number, size in enumerate((10, 5 * 2**20)):
        (shards / f"{number}.bin").write_bytes(bytes(size))
    (shards / ".gitignore").write_text("*\n")
    (lab / "deep" / "lists.py").write_text(LISTS)
    made = run(lab, "--", "python", "deep/lists.py")
    # The script runs elsewhere than the workspace, and still the record says where in it the files are.
    assert [one["path"] for one in made["inputs"]] == ["deep/shards/0.bin", "deep/shards/1.bin"]
    assert [one.get("stored", False) for one in made["inputs"]] == [True, False]
    assert answer("replay", made["id"], cwd=lab)["compared"]["steps"] == 2
