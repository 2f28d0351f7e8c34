"""Reads a request as JSON from stdin, runs the step on fake tensors, and prints the answer as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import sys


def main() -> int:
    """Answer one request; 2 with one line on stderr where it cannot be run."""
    request = json.load(sys.stdin)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with contextlib.redirect_stdout(sys.stderr):
        import torch

        torch.set_num_threads(1)
        from labassist.planner.dryrun.step import measure

        answer = measure(request)
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
