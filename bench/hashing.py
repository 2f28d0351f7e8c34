"""How fast a checkpoint is hashed, beside `sha256sum` on the same files, each on one core.

    python bench/hashing.py [--gib 2] [--pairs 3] [--json FILE]

A checkpoint of four files is verified as the supervisor and the audit do it, in turn with `sha256sum`, from the page
cache. Prints a PASS or FAIL line and exits 1 when the promise is not kept.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from labassist.record.inspect import COMMIT, MANIFEST, inspect

SHARE = 0.9
FILES = 4
BLOCK = 1 << 20


def checkpoint(folder: Path, size: int) -> list[Path]:
    """Make a committed checkpoint of `size` bytes and return its files."""
    folder.mkdir()
    block, files, promised = os.urandom(BLOCK), [], {}
    for number in range(FILES):
        path = folder / f"part-{number}.bin"
        digest = hashlib.sha256()
        with path.open("wb") as file:
            for _ in range(size // FILES // BLOCK):
                file.write(block)
                digest.update(block)
        files.append(path)
        promised[path.name] = {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}
    manifest = {"format": "labassist", "version": 1, "run": "bench", "step": 1, "world_size": 1, "states": {}}
    (folder / MANIFEST).write_text(json.dumps({**manifest, "files": promised, "tensors": {}}))
    (folder / COMMIT).write_text(hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest())
    return files


def seconds(work: object) -> float:
    """Return the seconds of processor time that a call took, its children included."""
    before = os.times()
    began = time.perf_counter()
    work()  # type: ignore[operator]
    wall = time.perf_counter() - began
    after = os.times()
    used = sum(after[:4]) - sum(before[:4])
    print(f"  {wall:.2f} s, {used:.2f} s of a core")
    return used


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--json", type=Path, help="keep the numbers in this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hashing-") as name:
        folder = Path(name) / "step-00000001"
        files = checkpoint(folder, int(options.gib * 2**30))
        size = sum(path.stat().st_size for path in files)
        ours, theirs = [], []
        for _ in range(options.pairs):
            theirs.append(
                seconds(lambda: subprocess.run(["sha256sum", *files], check=True, stdout=subprocess.DEVNULL))
            )
            ours.append(seconds(lambda: inspect(folder)))
    share = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
    rates = [size / 2**20 / statistics.median(took) for took in (ours, theirs)]
    word = "PASS" if share >= SHARE else "FAIL"
    print(
        f"{word} {size / 2**30:.1f} GiB: {rates[0]:,.0f} MiB a second of a core, sha256sum {rates[1]:,.0f}: "
        f"{share:.2f} of it (at least {SHARE})"
    )
    if options.json:
        result = {"bytes": size, "seconds": ours, "sha256sum_seconds": theirs, "share": share}
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if share >= SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
