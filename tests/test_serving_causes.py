"""Why a server died, told from logs of real starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from labassist.serving import causes

TRACES = Path(__file__).parent / "traces"


@pytest.mark.fault
@pytest.mark.parametrize(
    ("trace", "said", "mend"),
    [
        ("architecture", "knows no architecture NopeForCausalLM", "setup vllm --upgrade"),
        ("plugin", "need the plugin vllm-bnb-plugin", "labassist merge"),
        ("clash", "torchvision in the serving environment was built for another torch", "uninstall"),
        ("memory", "the cache was to take 900.0 GiB", "--memory-fraction"),
        (
            "cache",
            "the cache for one sequence of 8192 tokens needs 0.18 GiB, and 0.05 GiB are left",
            "--max-len",
        ),
        ("length", "the model takes 8192 tokens, and 100000 were asked for", "--max-len 8192"),
        ("rank", "an adapter has rank 16, and --max-lora-rank was 8", "above 16"),
        ("weights", "the weights are damaged: Error while deserializing header", "bring that model again"),
    ],
)
def test_the_cause_is_found_in_logs_of_real_starts_that_failed(trace: str, said: str, mend: str) -> None:
    lines = (TRACES / f"vllm-{trace}.log").read_text().splitlines()
    found = causes.find(lines, 1, {})
    assert said in found and mend in found.split("; ", 1)[1] and "\n" not in found


def test_a_start_that_went_well_has_phases_and_no_cause() -> None:
    lines = (TRACES / "vllm-ready.log").read_text().splitlines()
    phases = [said for line in lines if (said := causes.phase(line))]
    assert phases[0] == "reads the model's configuration" and phases[-1] == "starts to answer"
    assert "it was killed (SIGKILL)" in causes.find(lines, -9, {"device": "cuda"})
    # vLLM warns of open files at each start: that is not what it died of.
    assert "Too many open files" not in causes.find(lines, 1, {})
    worker = (
        "(EngineCore pid=7) ERROR 11-30 10:00:00 [multiproc_executor.py:316] Worker proc VllmWorker-0 died "
    )
    killed = [worker + "unexpectedly (exit code: -9), shutting down executor.", "EngineDeadError: EngineCore"]
    assert "a worker of its engine was killed (SIGKILL)" in causes.find([*lines, *killed], 0, {})
    assert causes.find(["Traceback", "KeyError: 'x'", ""], 1, {}).startswith("KeyError: 'x'")
