"""A hub's model, from a real HTTP mirror: pinned, licence and size told, cut and gone on with, offline after that."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from command import labassist
from test_finetune_models import weights

from labassist.workspace import Workspace

pytestmark = [pytest.mark.slow, pytest.mark.fault]

ID, SHA = "Someone/small-model", "c0ffee" + "0" * 34
FILES = {
    "config.json": json.dumps({"model_type": "llama"}).encode(),
    "tokenizer.json": b"{}",
    "model.safetensors": weights("abcdefgh" * 3_840_000),
    "pytorch_model.bin": b"pickled, and left there",
    "README.md": b"---\nlicense: mit\n---\n",
}


class Mirror(ThreadingHTTPServer):
    """Speaks as much of a hub's protocol as a download needs; `cut` bytes of the weights, then the line breaks."""

    cut: int | None = None
    told = ""
    """A digest that the hub tells of the weights in place of the right one."""
    asked: list[str]


class Handler(BaseHTTPRequestHandler):
    server: Mirror

    def log_message(self, *_: Any) -> None:
        return

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        if found := re.fullmatch(rf"/{ID}/resolve/{SHA}/(.+)", self.path):
            self.file(FILES[found[1]], found[1], body)
        elif re.match(rf"/api/models/{ID}(/revision/(main|{SHA}))?(\?|$)", self.path):
            siblings = [{"rfilename": name, "size": len(data)} for name, data in FILES.items()]
            digest = self.server.told or hashlib.sha256(FILES["model.safetensors"]).hexdigest()
            siblings[2]["lfs"] = {"size": siblings[2]["size"], "sha256": digest, "pointerSize": 130}
            told = {"id": ID, "sha": SHA, "siblings": siblings, "cardData": {"license": "mit"}}
            self.send(200, json.dumps(told).encode(), {"Content-Type": "application/json"}, body)
        else:
            code = "RevisionNotFound" if ID in self.path else "RepoNotFound"
            self.send(404, b"{}", {"X-Error-Code": code, "X-Error-Message": "none"}, body)

    def file(self, data: bytes, name: str, body: bool) -> None:
        etag = hashlib.sha256(data).hexdigest()
        headers = {"X-Repo-Commit": SHA, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
        asked = self.headers.get("Range", "")
        if body:
            self.server.asked.append(f"{name} {asked}".strip())
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", asked):
            start = int(found[1])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self.send(206, data[start:], headers, body)
        else:
            self.send(200, data, headers, body)

    def send(self, status: int, data: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if body and self.server.cut is not None and len(data) > self.server.cut:
            self.wfile.write(data[: self.server.cut])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            self.server.socket.close()  # nobody answers any more
        elif body:
            self.wfile.write(data)


def serve(port: int = 0, cut: int | None = None) -> Mirror:
    server = Mirror(("127.0.0.1", port), Handler)
    server.cut, server.asked = cut, []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    server = serve()
    yield server
    server.shutdown()


def env(server: Mirror, home: Path, **more: str) -> dict[str, str]:
    return {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(home), **more}


def download(workspace: Workspace, variables: dict[str, str], *words: str, status: int = 0) -> str:
    command = ("run", "--", "python", "-m", "labassist.finetune.hub", *words)
    labassist(*command, cwd=workspace.root, status=status, env=variables)
    return labassist("logs", "@last", cwd=workspace.root).stdout


def test_a_download_is_a_recorded_run_and_is_pinned(
    workspace: Workspace, mirror: Mirror, tmp_path: Path
) -> None:
    log = download(workspace, env(mirror, tmp_path), ID)
    assert "licence: mit" in log and "0.03 GB" in log and f"at revision {SHA}" in log
    assert "pytorch_model.bin" not in " ".join(mirror.asked)
    document = json.loads(labassist("show", "@last", "--json", cwd=workspace.root).stdout)
    [given] = document["inputs"]
    assert given["split"]["revision"] == SHA and given["split"]["licence"] == "mit"
    mirror.shutdown()
    # From here on no network is asked for.
    program = (
        "import sys; from pathlib import Path; from labassist.finetune import models; "
        "m = models.prepare(sys.argv[1], Path('.'), sys.argv[2]); print(m.revision, m.digest)"
    )
    for revision in ("", "main", SHA):
        told = subprocess.run(
            [sys.executable, "-c", program, ID, revision],
            cwd=workspace.root,
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout.split() == [SHA, given["split"]["digest"]], revision


def test_a_download_that_was_cut_goes_on_where_it_stopped(workspace: Workspace, tmp_path: Path) -> None:
    broken = serve(cut=25_000_000)  # the client writes ten million bytes at a time
    log = download(workspace, env(broken, tmp_path), ID, status=2)
    assert "the download was cut" in log and "missing: model.safetensors" in log
    port = broken.server_port
    refused = labassist(
        *("run", "07-qlora/sft", "--set", f"model.name={ID}"), cwd=workspace.root, status=None
    )
    assert refused.returncode, "a model that is half here is not trained"
    whole = serve(port)
    log = download(workspace, env(whole, tmp_path), ID)
    assert f"at revision {SHA}" in log
    [weights] = [one for one in whole.asked if one.startswith("model.safetensors")]
    start = int(re.search(r"bytes=(\d+)-", weights)[1])  # type: ignore[index]
    assert start == 20 * 1024 * 1024
    [folder] = (workspace.cache / "models").glob("hub--*")
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    whole.shutdown()


def test_a_file_that_is_not_what_the_hub_says_is_brought_again(
    workspace: Workspace, mirror: Mirror, tmp_path: Path
) -> None:
    mirror.told = "0" * 64
    assert "arrived damaged: model.safetensors" in download(workspace, env(mirror, tmp_path), ID, status=2)
    mirror.told = ""
    assert f"at revision {SHA}" in download(workspace, env(mirror, tmp_path), ID)
    assert sum(one.startswith("model.safetensors") for one in mirror.asked) == 2
    assert sum(one.startswith("config.json") for one in mirror.asked) == 1


def test_without_a_network_it_says_what_is_missing_and_how_to_bring_it(
    workspace: Workspace, tmp_path: Path
) -> None:
    gone = serve()
    variables = env(gone, tmp_path)
    gone.shutdown()
    gone.server_close()
    for more in ({}, {"HF_HUB_OFFLINE": "1"}):
        log = download(workspace, {**variables, **more}, ID, status=2)
        assert "cannot be reached" in log and "missing: config.json, tokenizer.json, *.safetensors" in log
        assert "HF_ENDPOINT" in log and f"hf download {ID} --local-dir" in log


def test_a_wrong_name_or_revision(workspace: Workspace, mirror: Mirror, tmp_path: Path) -> None:
    variables = env(mirror, tmp_path)
    assert "no such model there" in download(workspace, variables, "Someone/other", status=2)
    assert "has no revision 'v9'" in download(workspace, variables, ID, "--revision", "v9", status=2)
    assert "is no hub id" in download(workspace, variables, "embedded", status=2)
