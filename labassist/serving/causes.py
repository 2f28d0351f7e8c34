"""Read vLLM's log: how far it is in its start, and why a server died, in one line with its mend.

The patterns were taken from logs of real starts that failed (vLLM 0.32.0; tests/traces/vllm-*.log), those of a GPU from
the texts in its source: no start on a GPU has been recorded yet.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

PHASES = (
    ("Resolved architecture", "reads the model's configuration"),
    ("Initializing a V1 LLM engine", "starts the engine"),
    ("Starting to load model", "loads the weights"),
    ("Loading weights took", "weights are loaded"),
    ("Compiling", "compiles"),
    ("Dynamo bytecode transform", "compiles"),
    ("Warming up model", "compiles and warms up"),
    ("Capturing CUDA graphs", "captures CUDA graphs"),
    ("KV cache size", "the cache is there"),
    ("Application startup complete", "starts to answer"),
)

LONGEST = 260
"""Characters of vLLM's own words that are shown."""


class Cause(NamedTuple):
    """What a line of a dead server's log means."""

    pattern: re.Pattern[str]
    says: str
    """May use the pattern's groups."""
    mend: str


def _cause(pattern: str, says: str, mend: str) -> Cause:
    return Cause(re.compile(pattern), says, mend)


CAUSES = (
    _cause(
        r"Model architectures \['?(\w+)'?.*are not supported",
        "this vLLM knows no architecture {0}",
        "serve another model, or a newer vLLM: labassist setup vllm --upgrade",
    ),
    _cause(
        r"LoRA rank (\d+) is greater than max_lora_rank (\d+)",
        "an adapter has rank {0}, and --max-lora-rank was {1}",
        "leave --max-lora-rank out, or give the next of 8, 16, 32, 64, 128, 256, 320, 512 above {0}",
    ),
    _cause(
        r"max_model_len \((\d+)\) is greater than the derived max_model_len \(\w+=(\d+)",
        "the model takes {1} tokens, and {0} were asked for",
        "give --max-len {1} or less",
    ),
    _cause(
        r"To serve at least one request with the model'?s?'?s max seq len \((\d+)\), \(?([\d.]+) GiB KV cache is needed, "
        r"which is larger than the available KV cache memory \(([\d.]+) GiB\)",
        "the cache for one sequence of {0} tokens needs {1} GiB, and {2} GiB are left for it",
        "give a smaller --max-len, or a larger --memory-fraction",
    ),
    _cause(
        r"No available memory for the cache blocks",
        "the weights leave no memory for the cache",
        "give a larger --memory-fraction, or take a smaller or a quantised model",
    ),
    _cause(
        r"Free memory on device .*?\(([\d.]+)/([\d.]+) GiB\) on startup is less than desired",
        "{0} of the card's {1} GiB are free, less than the share that vLLM was to take",
        "give a smaller --memory-fraction, or stop what is on the card",
    ),
    _cause(
        r"requested memory for kv \(([\d.]+)",
        "the cache was to take {0} GiB, more than the memory that is free",
        "give a smaller --memory-fraction (or a smaller VLLM_CPU_KVCACHE_SPACE)",
    ),
    _cause(
        r"(?:CUDA out of memory|OutOfMemoryError|DefaultCPUAllocator: can't allocate|Cannot allocate memory)",
        "it ran out of memory",
        "give a smaller --memory-fraction or --max-len, or take a smaller or a quantised model",
    ),
    _cause(
        r"SafetensorError: (.*)",
        "the weights are damaged: {0}",
        "bring that model again (labassist audit says whether a merged one is as it was made)",
    ),
    _cause(
        r"Unknown quantization method: bitsandbytes",
        "bitsandbytes weights need the plugin vllm-bnb-plugin, which the serving environment lacks",
        "labassist setup vllm brings it where there is a GPU; or serve the model in 16 bits: labassist merge",
    ),
    _cause(
        r"Unknown quantization method: ([\w-]+)",
        "this vLLM cannot serve weights quantised by {0} on this machine",
        "serve the model in 16 bits: labassist merge makes one",
    ),
    _cause(
        r"operator (torch\w+)::\w+ does not exist",
        "{0} in the serving environment was built for another torch",
        "uninstall it there (pip uninstall torchvision torchcodec torchaudio), or make it again: labassist setup vllm",
    ),
    _cause(
        r"No module named '?vllm\b",
        "this Python has no vLLM",
        "labassist setup vllm",
    ),
    _cause(
        r"^(?:ImportError|ModuleNotFoundError|AttributeError): (.*)",
        "the packages of the serving environment clash: {0}",
        "make it again: delete its folder, then labassist setup vllm",
    ),
    _cause(
        r"[Aa]ddress already in use",
        "its port was taken while it started",
        "give --port 0 for a free one",
    ),
    _cause(
        r"Worker proc \S+ died unexpectedly \(exit code: -9\)",
        "a worker of its engine was killed (SIGKILL), by somebody or for want of memory",
        "see dmesg, or give a smaller --memory-fraction or --max-len",
    ),
    _cause(
        r"EngineDeadError|(?:EngineCore|Worker proc|[Ee]ngine core proc)\b.* died unexpectedly",
        "its engine died, killed by somebody or for want of memory, or by an error that stands above that in its log",
        "see labassist logs and dmesg, or give a smaller --memory-fraction or --max-len",
    ),
    _cause(
        r"error: (unrecognized arguments: .*|argument .*)",
        "vLLM does not take that option: {0}",
        "mend what stands after --",
    ),
)

_ERROR = re.compile(r"\b(\w*(?:Error|Exception)): (.+)")
_PREFIX = re.compile(r"^\(\w[^)]*\) (?:ERROR|INFO|WARNING) [\d-]+ [\d:]+ \[[^\]]*\] ?|^\(\w+ pid=\d+\) ")
_HARMLESS = re.compile(r"^\(\w[^)]*\) (?:INFO|WARNING) |^(?:INFO|WARNING): ")
"""vLLM warns of much that has not killed it."""

_VAGUE = "See root cause above"


def phase(line: str) -> str:
    """Return what a line of the log says of the start, empty where nothing."""
    return next((said for sign, said in PHASES if sign in line), "")


def find(lines: Sequence[str], status: int, config: Mapping[str, Any]) -> str:
    """Return why a server died, and the mend, in one line.

    `lines` are the end of its log, `status` its exit status (negative: the signal), `config` the run's settings.
    """
    plain = [_PREFIX.sub("", line).strip() for line in lines if not _HARMLESS.match(line)]
    for cause in CAUSES:
        for line in plain:
            match = cause.pattern.search(line)
            if match:
                groups = [(group or "").strip()[:LONGEST] for group in match.groups()]
                return f"{cause.says.format(*groups)}; {cause.mend.format(*groups)}"
    if status == -signal.SIGKILL:
        where = "a card's" if config.get("device") == "cuda" else "the machine's"
        return (
            f"it was killed (SIGKILL), by somebody or for want of {where} memory; see dmesg, or give a smaller "
            "--memory-fraction"
        )
    if status < 0:
        return f"it was ended by signal {-status}"
    for line in reversed(plain):
        match = _ERROR.search(line)
        if match and _VAGUE not in line:
            return f"{match[1]}: {match[2][:LONGEST]}; labassist logs shows all of it"
    last = next((line for line in reversed(plain) if line), "it said nothing")
    return f"exit status {status}: {last[:LONGEST]}"
