"""From a model to answers: the environment of the server, the server as a recorded run, and talking to it."""

from __future__ import annotations

JOB = "serving/vllm"
"""What a server is called in the ledger."""
