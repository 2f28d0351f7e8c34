"""A session from the wheel, command by command: `test_wheel.py` types it into an empty folder.

A line is an exit status, and the words after `labassist` (a tuple where a word has a blank in it). RUN becomes the id
of the first run, LAB the workspace's folder, and DEAD the address of a port where nobody answers; "" is `labassist`
alone. Every command has a line here, which a fast test checks: one that cannot work here (no vLLM, no server, no
network) stands here with the status of its refusal.
"""

from __future__ import annotations

QUICK = ("--profile", "tiny", "--set", "steps=60", "--set", "every.checkpoint=10", "--set", "every.eval=30")
JOB = "01-first-loop/train"
SLOWLY = ("-c", "import time; [print(n, flush=True) or time.sleep(0.05) for n in range(2000)]")

TRANSCRIPT: list[tuple[int, str | tuple[str, ...]]] = [
    (0, "doctor"),
    (0, "labs"),
    (0, "labs --map"),
    (0, "labs lint --static"),
    (0, "lab 01"),
    (2, "lab 99"),
    (0, "lab 01/loop --done"),
    (0, ("run", JOB, *QUICK, "--note", "the first", "--price", "0.5", "--max-hours", "1")),
    (0, ("run", JOB, *QUICK, "--seed", "7", "--on-end", "true")),
    (0, "runs --sort last.loss"),
    (0, "show @last"),
    (0, "note @last another_seed"),
    (0, "curve @last"),
    (0, "curve @last loss lr --csv -"),
    (0, "diff @-2 @last"),
    (0, "replay @last"),
    (0, ("run", "--detach", "--", "python", *SLOWLY)),
    (0, "attach"),
    (0, "stop @last"),
    (0, "logs -f @last"),
    (2, "resume @last"),
    (0, ("run", JOB, *QUICK, "--detach", "--set", "steps=40000")),
    (0, "stop @last"),
    (0, "logs -f @last"),
    (0, ("resume", "@last", "--set", "steps=40000", "--detach")),
    (0, "stop @last"),
    (0, "logs -f @last"),
    (1, "check 01"),
    (0, "hint 01/attention"),
    (0, "audit"),
    (0, "audit --anchor -o ../anchor.txt"),
    (0, "audit --anchor ../anchor.txt"),
    (0, "fsck"),
    (0, "prune --keep-last 1 --dry-run"),
    (0, "ckpt check ledger/runs/RUN/checkpoints/step-00000060"),
    (0, ("ckpt", "prove", JOB, *QUICK, "--set", "steps=300", "--at", "20", "--kill")),
    (0, ("ckpt", "ablate", JOB, *QUICK, "--at", "20", "--drop", "rng")),
    (0, "plan memory --model qwen2.5-7b --method qlora --seq 2048 --batch 2 --card 24GB"),
    (1, "plan memory --model qwen2.5-7b --method full --seq 2048 --batch 2 --card 24GB"),
    (0, "plan time --model qwen2.5-7b --seq 2048 --batch 2 --card 4090 --tokens 10M"),
    (0, "plan cost --hours 6-16 --card 4090 --people-hours 132"),
    (1, "plan power --card 4090 --gpus 2 --psu 1200 --hours 10"),
    (
        0,
        "plan decide --examples 1200 --sample 100 --errors 4 --prompt-score 0.61 --target-score 0.8 "
        "--eval-size 200 --people-hours 40 --budget-hours 132",
    ),
    (0, "plan claims"),
    (0, "data lint labs/07-qlora/tickets.jsonl"),
    (2, "merge outputs/none"),
    (2, "setup vllm --python nowhere"),
    (2, "serve outputs/none"),
    (2, "chat DEAD hello"),
    (2, "bench-serve DEAD"),
    (0, "export RUN --to bundle -o ../run.tar"),
    (0, "export RUN --to html -o ../run.html"),
    (0, "export --all --to csv -o ../tables"),
    (0, "export RUN --to ro-crate -o ../crate"),
    (2, "export RUN --to script"),
    (0, "--workspace ../second import ../run.tar"),
    (0, "--workspace ../second pull here:LAB"),
    (0, "--workspace ../second replay RUN"),
    (1, "leave ../kept"),
    (0, "upgrade"),
    (2, ""),
]


def words(line: str | tuple[str, ...]) -> list[str]:
    """Return a line's words."""
    return line.split() if isinstance(line, str) else list(line)


def typed() -> set[str]:
    """Return every line as one text, without the workspace that it names."""
    lines = {" ".join(words(line)) for _, line in TRANSCRIPT}
    return {line.removeprefix("--workspace ../second ") for line in lines}
