"""How long `ckpt check` takes on 15 GB of weights and optimizer without checksums, and how much memory.

python bench/ckpt_check.py [--gb N] [--rate-gb N] [--json FILE]

The large files are sparse: their structure is whole, their tensors are zeros that take no disk. A second,
small file with real bytes gives the rate with checksums, beside that of the CRC alone.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

SECONDS = 2.0
MIB = 200
SHARE = 0.5
"""Of the rate of the CRC alone: the rest is opening and reading."""

LAYERS = 28
GB = 10**9


def weights(folder: Path, size: int) -> list[tuple[str, list[int]]]:
    """Write a sparse model.safetensors of `size` bytes, bf16, with the names of a 28-layer model."""
    parts = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    names = [f"model.layers.{layer}.{part}.weight" for layer in range(LAYERS) for part in parts]
    names += ["model.embed_tokens.weight", "model.norm.weight"]
    width = size // 2 // len(names) // 1024
    header: dict[str, Any] = {}
    at = 0
    for name in names:
        header[name] = {"dtype": "BF16", "shape": [width, 1024], "data_offsets": [at, at + width * 2048]}
        at += width * 2048
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    return [(name, [width, 1024]) for name in names]


class Storage:
    """A persistent id of torch's archive."""

    def __init__(self, key: str, count: int) -> None:
        self.key, self.count = key, count


def archive(path: Path, tensors: list[tuple[str, list[int]]], *, real: bool = False) -> None:
    """Write optimizer.pt as torch.save does, a stored zip; the tensors' bytes are holes unless `real`."""
    import torch

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            if isinstance(value, Storage):
                kind = torch.FloatStorage
                return ("storage", kind, value.key, "cpu", value.count)
            return None

    class Tensor:
        def __init__(self, key: str, shape: list[int]) -> None:
            self.key, self.shape = key, shape

        def __reduce__(self) -> Any:
            count = 1
            for size in self.shape:
                count *= size
            stride = (self.shape[1], 1) if len(self.shape) == 2 else ()
            rest: tuple[Any, ...] = (0, tuple(self.shape), stride, False, {})
            return torch._utils._rebuild_tensor_v2, (Storage(self.key, count), *rest)

    keys: list[tuple[str, int]] = []

    def tensor(shape: list[int]) -> Tensor:
        key = str(len(keys))
        keys.append((key, 4 * shape[0] * shape[1] if shape else 4))
        return Tensor(key, shape)

    state = {
        at: {"step": tensor([]), "exp_avg": tensor(shape), "exp_avg_sq": tensor(shape)}
        for at, (_, shape) in enumerate(tensors)
    }
    stream = io.BytesIO()
    groups = [{"lr": 1e-4, "params": list(range(len(tensors)))}]
    Pickler(stream, protocol=2).dump({"state": state, "param_groups": groups})
    step = struct.pack("<f", 500.0)
    with path.open("wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as out:
        out.writestr("optimizer/data.pkl", stream.getvalue())
        for key, size in keys:
            if size == 4 or real:
                out.writestr(f"optimizer/data/{key}", step if size == 4 else os.urandom(size))
            else:
                hole(out, file, f"optimizer/data/{key}", size)


def hole(out: zipfile.ZipFile, file: Any, name: str, size: int) -> None:
    """Add a member whose bytes are a hole in the file: the header is written, the content is skipped."""
    info = zipfile.ZipInfo(name)
    info.file_size = info.compress_size = size
    info.CRC = 0  # without checksums nobody looks
    info.header_offset = out.start_dir
    file.seek(out.start_dir)
    file.write(info.FileHeader(zip64=size >= zipfile.ZIP64_LIMIT))
    end = file.tell() + size
    file.truncate(end)
    file.seek(end)
    out.start_dir = end
    out.filelist.append(info)
    out.NameToInfo[name] = info
    out._didModify = True  # type: ignore[attr-defined]


def checkpoint(folder: Path, gigabytes: float) -> None:
    """Make a Trainer's checkpoint of 500 steps: a third weights, two thirds optimizer."""
    folder.mkdir()
    size = int(gigabytes * GB)
    tensors = weights(folder, size // 5)
    archive(folder / "optimizer.pt", tensors)
    import torch

    torch.save({"last_epoch": 500, "_step_count": 501}, folder / "scheduler.pt")
    rng = {"python": (3, (1,), None), "numpy": ("MT19937", [1], 1, 0, 0.0), "cpu": torch.get_rng_state()}
    torch.save(rng, folder / "rng_state.pth")
    state = {"global_step": 500, "max_steps": 1000, "epoch": 0.5, "log_history": []}
    (folder / "trainer_state.json").write_text(json.dumps(state) + "\n")


ONE = """
import json, sys, time
from pathlib import Path
began = time.perf_counter()
from labassist.resume.check import check
loaded = time.perf_counter()
report = check(Path(sys.argv[1]), verify=sys.argv[2] == "verify")
ended = time.perf_counter()
# VmHWM is this program's own; ru_maxrss would count what the parent had when it forked.
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
print(json.dumps({"seconds": ended - began, "check": ended - loaded, "mib": peak, "verdict": report.verdict,
                  "bad": [f.code for f in report.found.findings if f.severity in ("warning", "error")]}))
"""


def check(path: Path, how: str) -> dict[str, Any]:
    """Check in a fresh process; return seconds with and without the import, and the peak of its memory in MiB."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", ONE, str(path), how], env=env, capture_output=True, text=True, check=True
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def crc_rate(path: Path) -> float:
    """Return the bytes a second of reading a file and taking its CRC-32."""
    began, value = time.perf_counter(), 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            value = zlib.crc32(chunk, value)
    return path.stat().st_size / (time.perf_counter() - began)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gb", type=float, default=15.0, help="size of the large checkpoint")
    parser.add_argument("--rate-gb", type=float, default=0.5, help="size of the file that is really read")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ckpt-check-") as name:
        large = Path(name) / "checkpoint-500"
        checkpoint(large, options.gb)
        size = sum(file.stat().st_size for file in large.iterdir())
        quick = min((check(large, "quick") for _ in range(3)), key=lambda one: float(one["seconds"]))
        one = Path(name) / "one" / "optimizer.pt"
        one.parent.mkdir()
        rows = int(options.rate_gb * GB) // 2 // 4 // 1024
        archive(one, [("w", [rows, 1024])], real=True)
        bare = crc_rate(one)
        verified = check(one, "verify")
        rate = one.stat().st_size / verified["check"]
    results = {
        "bytes": size,
        "seconds": quick["seconds"],
        "mib": quick["mib"],
        "verdict": quick["verdict"],
        "rate_verified": rate,
        "rate_crc": bare,
        "mib_verified": verified["mib"],
    }
    tests = {
        f"{size / GB:.1f} GB without checksums: {quick['seconds']:.2f} s (< {SECONDS:.0f})": quick["seconds"]
        < SECONDS,
        f"memory: {max(quick['mib'], verified['mib']):.0f} MiB (< {MIB})": max(quick["mib"], verified["mib"])
        < MIB,
        f"with checksums: {rate / GB:.2f} GB/s, the CRC alone {bare / GB:.2f} (≥ {SHARE:.0%} of it)": rate
        >= SHARE * bare,
        f"the checkpoint is judged whole: {quick['verdict']} {quick['bad']}": quick["verdict"] == "EXACT",
    }
    for text, good in tests.items():
        print(f"{'PASS' if good else 'FAIL'}  {text}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if all(tests.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
