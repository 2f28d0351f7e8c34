"""What a run ran on is described fully, cheaply, and without importing what it describes."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from labassist.errors import LedgerError
from labassist.ledger import canonical, environment


def test_every_distribution_is_listed() -> None:
    """The quick list, from folder names, is the same as the slow one that parses each metadata file."""
    found = {
        re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower(): one.version
        for one in reversed(list(importlib.metadata.distributions()))
    }
    assert environment.distributions() == sorted(f"{name}=={version}" for name, version in found.items())


def test_the_first_on_the_path_counts(tmp_path: Path) -> None:
    (tmp_path / "a" / "Some_Thing-1.0.dist-info").mkdir(parents=True)
    (tmp_path / "b" / "some.thing-2.0.dist-info").mkdir(parents=True)
    (tmp_path / "b" / "old.egg-info").mkdir(parents=True)
    (tmp_path / "b" / "old.egg-info" / "PKG-INFO").write_text(
        "Metadata-Version: 1.0\nName: old\nVersion: 3\n"
    )
    (tmp_path / "b" / "broken.egg-info").mkdir(parents=True)
    paths = [str(tmp_path / name) for name in ("a", "b", "no such folder")]
    assert environment.distributions(paths) == ["old==3", "some-thing==1.0"]
    assert environment.distributions(paths[::-1]) == ["old==3", "some-thing==2.0"]


def test_the_environment_is_an_object_with_a_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    first = environment.environment()
    assert json.loads(canonical.dumps(first)) == first
    assert first["python"] == ".".join(map(str, sys.version_info[:3]))
    assert environment.environment() == first
    monkeypatch.setattr(environment.platform, "release", lambda: "another kernel")
    assert environment.environment()["digest"] == first["digest"]
    monkeypatch.setattr(environment, "distributions", lambda: ["torch==0.0"])
    assert environment.environment()["digest"] != first["digest"]


def test_hardware_tells_what_arithmetic_depends_on() -> None:
    facts = environment.hardware()
    assert json.loads(canonical.dumps(facts)) == facts
    assert facts["cpu"]["model"]
    assert facts["cpu"]["cores"] >= 1
    assert facts["memory_bytes"] > 1 << 28
    if sys.platform == "linux" and facts["cpu"]["machine"] == "x86_64":
        assert "sse2" in facts["cpu"]["flags"]


def test_each_question_to_a_gpu_may_fail_alone() -> None:
    pynvml = pytest.importorskip("pynvml")

    class Driver:
        """A driver that answers only what is given, and says of all else that it is not supported."""

        NVMLError = pynvml.NVMLError
        NVML_NVLINK_MAX_LINKS = 18

        def __init__(self, **answers: object) -> None:
            self.answers = answers

        def __getattr__(self, name: str) -> object:
            def ask(*_: object) -> object:
                if name in self.answers:
                    return self.answers[name]
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

            return ask

    handle = {"nvmlDeviceGetHandleByIndex": object(), "nvmlDeviceGetName": b"Card"}
    assert environment._gpu(Driver(**handle), 0) == {"name": "Card"}
    more = {
        "nvmlDeviceGetCudaComputeCapability": (9, 0),
        "nvmlDeviceGetNumGpuCores": 16896,
        "nvmlDeviceGetNvLinkState": 1,
        "nvmlDeviceGetPowerManagementLimit": 700_000,
    }
    assert environment._gpu(Driver(**handle, **more), 0) == {
        "name": "Card",
        "compute_capability": "9.0",
        "cuda_cores": 16896,
        "sm_count": 132,
        "nvlinks": 18,
        "power_limit_watts": 700.0,
    }
    assert "error" in environment._gpu(Driver(), 0)


@pytest.mark.gpu
def test_a_real_gpu_is_described_as_torch_does() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    told, known = environment.hardware()["gpus"][0], torch.cuda.get_device_properties(0)
    assert (told["name"], told["sm_count"]) == (known.name, known.multi_processor_count)
    assert told["compute_capability"] == f"{known.major}.{known.minor}"


def test_versions_are_found_without_an_import() -> None:
    code = (
        "import sys; from labassist.ledger import environment as e; v = e.versions(e.hardware());"
        "print(v['python'], v['labassist'], v.get('torch', ''));"
        "print(sorted({'torch', 'numpy', 'transformers', 'git', 'textual'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    words, modules = out.splitlines()
    assert words.split()[0] == ".".join(map(str, sys.version_info[:3]))
    assert modules == "[]"
    try:
        assert words.split()[2] == importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        assert len(words.split()) == 2


def test_gpus_of_one_kind_are_counted() -> None:
    facts = {"cpu": {"model": "C"}, "gpus": [{"name": "A"}, {"name": "A"}, {"name": "B"}], "driver": "1.2"}
    told = environment.versions(facts)
    assert (told["cpu"], told["gpu"], told["driver"]) == ("C", "2x A, B", "1.2")
    assert "gpu" not in environment.versions({"cpu": {}})


def test_a_machine_keeps_its_id() -> None:
    first = environment.machine()
    assert re.fullmatch(r"[0-9a-f]{32}", first.id)
    assert environment.machine() == first
    known = Path("/etc/machine-id")
    if known.is_file():
        assert first.id != known.read_text().strip()


def test_where_a_machine_has_no_id_one_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_KNOWN_IDS", (tmp_path / "none",))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    first = environment.machine()
    assert environment.machine() == first
    assert [path.name for path in (tmp_path / "state/labassist").iterdir()] == ["machine-id"]
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    assert environment.machine().id != first.id
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(LedgerError, match="XDG_STATE_HOME"):
        environment.machine()
