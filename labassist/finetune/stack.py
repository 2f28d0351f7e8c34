"""Whether torch, its CUDA, the driver, the card and bitsandbytes fit each other; asked in a process of its own.

Run as `python -m labassist.finetune.stack` it prints what this interpreter's torch says of itself, as JSON; a torch that
crashes or hangs takes only that process along.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from labassist import own

ASK_S = 120.0
"""A first import of torch from a cold network disk takes tens of seconds."""

_BOXED = "import json, sys\nfrom labassist.finetune.stack import probe\nprint('\\n' + json.dumps(probe()))"


def ask(python: str = sys.executable, timeout: float = ASK_S) -> dict[str, Any]:
    """Return what `probe` finds in a fresh process; `{"error": …}` where that process dies or says nothing in time."""
    try:
        done = subprocess.run(
            [
                python,
                "-P",
                "-c",
                "import sys; sys.path[:0] = sys.argv[1:]\n" + _BOXED,
                *filter(None, sys.path),
            ],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"torch did not answer within {timeout:g} s"}
    if done.returncode:
        last = own.last_line(done.stderr)
        died = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
        return {"error": f"importing torch ended with {died}: {last}".rstrip(": ")}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def probe() -> dict[str, Any]:
    """Return facts on torch and bitsandbytes: versions, CUDA, devices, and the first line of what went wrong.

    Keys: `torch` (version) or `missing`; `cuda` (built for), `available`, `cuda_error`, `devices` [{name, capability,
    works}], `arches`; `bitsandbytes` (version), `bitsandbytes_error`.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name == "torch":
            return {"missing": True}
        return {"error": f"torch cannot be imported: {_first(error)}"}
    except Exception as error:  # noqa: BLE001 - a broken build fails in many ways, and each is an answer
        return {"error": f"torch cannot be imported: {_first(error)}"}
    facts: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}
    facts["available"] = torch.cuda.is_available()
    if facts["cuda"] and not facts["available"]:
        try:
            cuda: Any = torch.cuda
            cuda.init()
        except Exception as error:  # noqa: BLE001 - what CUDA says is what is asked for
            facts["cuda_error"] = _first(error)
    if facts["available"]:
        facts["arches"] = torch.cuda.get_arch_list()
        facts["devices"] = [_device(torch, number) for number in range(torch.cuda.device_count())]
    _bitsandbytes(facts)
    return facts


def _device(torch: Any, number: int) -> dict[str, Any]:
    """Return one device, and whether a product of two matrices comes out of it."""
    facts = {
        "name": torch.cuda.get_device_name(number),
        "capability": list(torch.cuda.get_device_capability(number)),
    }
    try:
        ones = torch.ones(64, 64, device=f"cuda:{number}")
        facts["works"] = float((ones @ ones)[0, 0]) == 64.0
    except Exception as error:  # noqa: BLE001 - as above
        return {**facts, "works": False, "error": _first(error)}
    return facts


def _bitsandbytes(facts: dict[str, Any]) -> None:
    from labassist.errors import InputError
    from labassist.finetune.load import need_bitsandbytes

    try:
        import bitsandbytes
    except ModuleNotFoundError as error:
        if error.name != "bitsandbytes":
            facts["bitsandbytes_error"] = _first(error)
        return
    except Exception as error:  # noqa: BLE001 - as above
        facts["bitsandbytes_error"] = _first(error)
        return
    facts["bitsandbytes"] = bitsandbytes.__version__
    try:
        need_bitsandbytes(bool(facts["available"]))
    except InputError as error:
        facts["bitsandbytes_error"] = error.what


def _first(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
