"""Runs handed to other tools: tables, a page, a research object, MLflow. Each is read back by somebody else."""

from __future__ import annotations

import csv
import json
import math
import re
import shlex
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import little
import pytest
from command import answer, labassist

from labassist import content
from labassist.export import svg
from labassist.export.facts import Facts, facts
from labassist.export.page import _said
from labassist.ledger import curves
from labassist.ledger.canonical import decode_number
from labassist.ledger.records import CriterionLine, Mark
from labassist.ledger.store import Ledger
from labassist.record.protocol import file_sha256

NOTE = "a <b>bold</b> note & a 'quote' 号"


@pytest.fixture(scope="module")
def lab(little_lab: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The little lab with a replay, a note, and a check that read its first run."""
    root = Path(shutil.copytree(little_lab, tmp_path_factory.mktemp("exports") / "lab", symlinks=True))
    with Ledger.open(root / "ledger") as ledger:
        first = ledger.runs.all()[0]["id"]
        ledger.change(
            "note", first, lambda run: {**run, "note": NOTE, "price": 0.5, "currency": "EUR", "cost": 1.25}
        )
        line = CriterionLine("loss < 1", False, "below 1", "1.5", f"curve {first}")
        ledger.mark(
            lambda _marks: Mark(
                "01-first-loop", "train", "check", "2026-11-30T00:00:00.000Z", criteria=[line], evidence={f"run {first}": "0" * 32}
            )
        )  # fmt: skip
    return root


@pytest.fixture(scope="module")
def runs(lab: Path) -> list[dict[str, Any]]:
    return list(answer("runs", cwd=lab)["runs"])


def test_tables_hold_every_run_and_every_value(lab: Path, runs: list[dict[str, Any]], tmp_path: Path) -> None:
    told = answer("export", "--all", "--to", "csv", "-o", str(tmp_path / "t"), cwd=lab)
    assert told["files"] == 1 + len(runs)
    with (tmp_path / "t" / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [run["id"] for run in runs]
    first = rows[0]
    assert (first["note"], first["cost"], first["state"], first["exit"]) == (NOTE, "1.25", "finished", "0")
    assert float(first["last.loss"]) == runs[0]["last"]["loss"]
    assert rows[2]["resumed_from.run"] == rows[1]["id"] and rows[1]["code.dirty"] == "true"
    with Ledger.open(lab / "ledger") as ledger:
        path = ledger.run_folder(runs[0]["id"]) / "metrics-rank0.jsonl"
    whole = curves.read_curve(path)
    with (tmp_path / "t" / "curves" / f"{runs[0]['id']}.csv").open(newline="") as file:
        read = {int(row["step"]): row for row in csv.DictReader(file)}
    assert len(read) == 40 and read[7]["loss"] == "nan:fff8000000000123"
    for step, value in whole.series["loss"].items():
        text = read[step]["loss"]
        assert curves.same_value(decode_number(text if ":" in text else float(text)), value)


@pytest.mark.fault
@pytest.mark.parametrize("words", [("export", "--all", "--to", "html", "-o"), ("curve", "@last", "--csv")])
def test_what_cannot_be_written_whole_leaves_what_was_there(
    lab: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    place = tmp_path / "handed.out"
    labassist(*words, str(place), cwd=lab)
    before = place.read_bytes()
    line = shlex.join([sys.executable, "-m", "labassist", *words, str(place)])
    limited = ["bash", "-c", f"ulimit -f 1; exec {line}"]
    done = subprocess.run(limited, cwd=lab, capture_output=True, text=True, check=False)
    assert len(before) > 1024 and done.returncode == 2, done.stderr
    assert "cannot be written: File too large" in done.stderr
    assert place.read_bytes() == before and list(tmp_path.iterdir()) == [place]


def test_an_export_does_not_make_a_folder_called_minus(lab: Path) -> None:
    done = labassist("export", "@last", "--to", "csv", "-o", "-", cwd=lab, status=2)
    assert "goes to a file or a folder" in done.stderr and not (lab / "-").exists()
    assert labassist("curve", "@last", "--csv", "/dev/stdout", cwd=lab).stdout.startswith("step,")


class Page(HTMLParser):
    """Checks that every tag is closed, and gathers text and what would be loaded."""

    VOID = ("meta", "br", "path", "polyline")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [
            f"{name}={value}" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset")
        ]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_says_all_and_loads_nothing(lab: Path, runs: list[dict[str, Any]], tmp_path: Path) -> None:
    labassist("export", "--all", "--to", "html", "-o", str(tmp_path / "p.html"), cwd=lab)
    text = (tmp_path / "p.html").read_text()
    page = Page(text)
    assert page.loads == [] and "url(" not in text and "@import" not in text and "script" not in page.tags
    said = "".join(page.text)
    head = json.loads((lab / "ledger" / "head").read_text())["hash"]
    for word in (
        *(run["id"] for run in runs),
        *(NOTE, head, "loss is nan at step 7", "1.25 EUR", "exit status 7", "resumed"),
        *(runs[0]["code"]["commit"], "loss < 1", "below 1", "01-first-loop/train", "python little.py 40 5 0.0 7"),
    ):  # fmt: skip
        assert word in said, word
    assert page.tags.count("svg") == len(runs) and "<b>bold" not in text
    assert "@media print" in text


@pytest.mark.slow
def test_a_replay_shows_its_verdict(lab: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(lab, tmp_path / "lab", symlinks=True))
    first = answer("runs", cwd=copy)["runs"][0]["id"]
    replayed = answer("replay", first, cwd=copy)
    for name in (first, replayed["run"]):
        labassist("export", name, "--to", "html", "-o", str(tmp_path / "p.html"), cwd=copy)
        said = "".join(Page((tmp_path / "p.html").read_text()).text)
        assert "BITWISE" in said and first in said and replayed["run"] in said


def test_a_page_of_a_damaged_ledger_says_what_it_lacks(lab: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(lab, tmp_path / "lab", symlinks=True))
    with Ledger.open(copy / "ledger") as ledger:
        run = ledger.runs.all()[0]
        ledger.objects.path(run["environment"]).unlink()
        found = facts(ledger, run)
    assert found.environment == {} and "environment" in found.notes[0] and found.hardware


def test_the_chart_hides_no_spike_and_shows_what_is_not_finite() -> None:
    series = dict.fromkeys(range(1, 20001), 1.0)
    series[7_777] = 50.0
    series[12_000] = math.nan
    series[12_001] = -math.inf
    points = svg.thinned(list(series.items()))
    assert (7_777, 50.0) in points and len(points) < 3_000 and points == sorted(points)
    assert points[0] == (1, 1.0) and points[-1] == (20_000, 1.0)
    drawn = svg.chart({"loss": series})
    assert drawn.count('class="lost"') == 2 and "nan" not in drawn and "inf" not in drawn
    assert svg.chart({}) == "" and "<svg" in svg.chart({"x": {5: math.nan}})


def test_one_point_is_seen_and_no_label_is_cut_off() -> None:
    for last in (20, 2_000, 1_000_000):
        drawn = svg.chart({"loss": {1: 3.0, last: 1.0}, "val_loss": {last: 1.4224}}, {last: "resumed"})
        assert drawn.count("<polyline") == 1 and drawn.count("<circle") == 1
        labels = re.findall(
            r'<text x="([\d.]+)"(?: y="[\d.]+")?(?: text-anchor="(\w+)")?[^>]*>([^<]+)<', drawn
        )
        assert any(text == f"{last:,}" for _, _, text in labels)
        for place, anchor, text in labels:
            share = {"end": 0.0, "middle": 0.5, "": 1.0}[anchor]
            assert float(place) + share * 6.2 * len(text) <= svg.WIDTH, (anchor, text)
    one = Facts({"id": "r"}, Path(), curves.Curve(series={"val_loss": {2000: 1.4224}}))
    assert _said("val_loss", one) == "val_loss: 1.4224 at step 2,000"


CONTEXT = {
    "@context": {
        **{
            term: f"http://schema.org/{term}"
            for term in (
                *("CreativeWork", "Dataset", "CreateAction", "SoftwareApplication", "PropertyValue", "Person"),
                *("name", "description", "datePublished", "license", "hasPart", "mentions", "about", "version"),
                *("startTime", "endTime", "instrument", "object", "result", "actionStatus", "agent", "error"),
                *("url", "softwareVersion", "identifier", "value", "contentSize", "encodingFormat"),
            )
        },
        "File": "http://schema.org/MediaObject",
        "conformsTo": "http://purl.org/dc/terms/conformsTo",
    }
}  # fmt: skip
"""The terms of the RO-Crate context that a crate of ours uses, for a validator without a network."""


def test_every_file_of_a_crate_is_there_and_every_entity_is_known(
    lab: Path, runs: list[dict[str, Any]], tmp_path: Path
) -> None:
    folder = tmp_path / "crate"
    labassist("export", "--all", "--to", "ro-crate", "-o", str(folder), cwd=lab)
    graph = json.loads((folder / "ro-crate-metadata.json").read_text())["@graph"]
    known = {entity["@id"]: entity for entity in graph}
    assert len(known) == len(graph)

    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            return {value["@id"]} if set(value) == {"@id"} else set().union(*map(references, value.values()))
        return set().union(*map(references, value)) if isinstance(value, list) else set()

    assert references(graph) - set(known) == {"https://w3id.org/ro/crate/1.1"}
    assert {word for entity in graph for word in entity if word[0] != "@"} <= set(CONTEXT["@context"])
    listed = {unquote(entity["@id"]) for entity in graph if entity["@type"] == "File"}
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert listed == there - {"ro-crate-metadata.json"}
    assert listed == {unquote(part["@id"]) for part in known["./"]["hasPart"]}
    actions = [entity for entity in graph if entity["@type"] == "CreateAction"]
    assert [action["@id"] for action in actions] == [f"#{run['id']}" for run in runs]
    assert [action["actionStatus"].rsplit("/")[-1][:6] for action in actions] == [
        "Comple",
        "Failed",
        "Comple",
    ]
    assert actions[1]["error"] == "exit status 7"
    for run in runs:
        kept = folder / "runs" / run["id"] / "metrics-rank0.jsonl"
        assert file_sha256(kept) == file_sha256(lab / "ledger" / "runs" / run["id"] / "metrics-rank0.jsonl")
    again = labassist("export", "--all", "--to", "ro-crate", "-o", str(folder), cwd=lab, status=2)
    assert "is there already" in again.stderr


VALIDATE = """
import email.message, io, sys, urllib.request
context = open(sys.argv[1], "rb").read()
class Answer(io.BytesIO):
    status = status_code = 200
    url = "https://w3id.org/ro/crate/1.1/context"
    def __init__(self, *_words, **_options):
        super().__init__(context)
        self.headers = email.message.Message()
        self.headers["Content-Type"] = "application/ld+json"
        self.text, self.content = context.decode(), context
    def info(self): return self.headers
    def geturl(self): return self.url
    def json(self): import json; return json.loads(context)
urllib.request.urlopen = Answer
import rdflib._networking
rdflib._networking.urlopen = Answer
from rocrate_validator import models, services
from rocrate_validator.utils import http
http.HttpRequester.get = lambda self, url, **_options: Answer()
settings = services.ValidationSettings(
    rocrate_uri=sys.argv[2], profile_identifier="process-run-crate-0.5", requirement_severity=models.Severity.RECOMMENDED
)
result = services.validate(settings)
for issue in result.get_issues():
    print(issue.severity.name, issue.check.identifier, issue.message)
"""


@pytest.mark.slow
def test_the_validator_of_the_profile_passes_a_crate_and_fails_a_broken_one(
    lab: Path, tmp_path: Path
) -> None:
    own = content.root() / ".venv" / "crate" / "bin" / "python"  # made by `make test-all`
    if not own.exists():
        pytest.importorskip("rocrate_validator")
    folder = tmp_path / "crate"
    labassist("export", "--all", "--to", "ro-crate", "-o", str(folder), cwd=lab)
    (tmp_path / "context.json").write_text(json.dumps(CONTEXT))

    def validate() -> list[str]:
        python = str(own) if own.exists() else sys.executable
        words = [python, "-c", VALIDATE, str(tmp_path / "context.json"), str(folder)]
        return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()

    # What it recommends besides: the author and the publisher of the crate, whom the ledger does not know, and a page
    # on the web for the code, whose id is its hash.
    assert sorted(line.split()[:2] for line in validate()) == [
        ["RECOMMENDED", check]
        for check in ("process-run-crate-0.5_5.1", "ro-crate-1.1_22.2", "ro-crate-1.1_22.3")
    ]
    place = folder / "ro-crate-metadata.json"
    place.write_text(place.read_text().replace('"instrument"', '"mentions"'))
    assert any(line.startswith("REQUIRED process-run-crate") for line in validate())


@pytest.mark.slow
def test_mlflow_reads_back_every_number(lab: Path, runs: list[dict[str, Any]], tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    store = tmp_path / "m.db"
    told = answer("export", "--all", "--to", "mlflow", "-o", str(store), cwd=lab)
    assert (told["logged"], told["known"]) == (3, 0)
    client = MlflowClient(f"sqlite:///{store}")
    (experiment,) = [one for one in client.search_experiments() if one.name != "Default"]
    found = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(found) == {run["id"] for run in runs}
    assert [found[run["id"]].info.status for run in runs] == ["FINISHED", "FAILED", "FINISHED"]
    for run in runs:
        logged = found[run["id"]]
        curve = curves.read_curve(lab / "ledger" / "runs" / run["id"] / "metrics-rank0.jsonl")
        for name in ("loss", "val_loss"):
            history = {m.step: m.value for m in client.get_metric_history(logged.info.run_id, name)}
            assert set(history) == set(curve.series[name])
            for step, value in curve.series[name].items():
                assert history[step] == value or (math.isnan(history[step]) and math.isnan(float(value)))
        assert logged.data.tags["mlflow.source.git.commit"] == run["code"]["commit"]
        assert logged.data.params["seed"] == "1337"
    assert answer("export", "--all", "--to", "mlflow", "-o", str(store), cwd=lab)["known"] == 3


def test_without_mlflow_it_says_what_to_install(lab: Path, tmp_path: Path) -> None:
    (tmp_path / "mlflow.py").write_text("raise ImportError('no mlflow here', name='mlflow')\n")
    env = {"PYTHONPATH": f"{tmp_path}:{little.ours()['PYTHONPATH']}"}
    done = labassist("export", "@last", "--to", "mlflow", cwd=lab, status=2, env=env)
    assert "pip install 'labassist[mlflow]'" in done.stderr
    assert not (lab / "mlflow.db").exists()


@pytest.mark.slow
def test_the_page_is_drawn_by_a_browser(lab: Path, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no browser here")
    from PIL import Image

    labassist("export", "--all", "--to", "html", "-o", str(tmp_path / "p.html"), cwd=lab)
    words = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={tmp_path}/u",
    ]
    shot = tmp_path / "o.png"
    subprocess.run(
        [*words, "--window-size=900,1200", f"--screenshot={shot}", f"file://{tmp_path}/p.html"],
        check=True,
        capture_output=True,
        timeout=120,
    )
    picture = Image.open(shot).convert("RGB")
    colours = {colour for _count, colour in picture.getcolors(2**24) or []}
    for name in ("#1b4f9c", "#b3410e"):
        assert tuple(bytes.fromhex(name[1:])) in colours, "the curve is drawn"
    subprocess.run(
        [*words, f"--print-to-pdf={tmp_path}/o.pdf", "--no-pdf-header-footer", f"file://{tmp_path}/p.html"],
        check=True,
        capture_output=True,
        timeout=120,
    )
    assert (tmp_path / "o.pdf").read_bytes().count(b"/Type /Page\n") >= 3, "each run begins a page"
