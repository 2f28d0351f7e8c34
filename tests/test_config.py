"""Jobs' numbers: types from defaults, bounds, and one clear line for what cannot be."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labassist.errors import InputError
from labassist.runs.config import Spec, check, parse_sets, read_spec, resolve_spec

JOB = """
steps = 100          # whole
clip = 1.0
compile = false
name = "run"
ramp = "off"
betas = [0.9, 0.95]
sizes = [1, 2]
empty = []

[optim]
lr = 1e-3
kind = "adamw"

[profiles.tiny]
steps = 5
optim.lr = 1

[schema]
"steps" = { min = 1, max = 1000, help = "updates" }
"clip" = { min = 0.0, words = ["off"] }
"ramp" = { min = 0, words = ["off"] }
"betas" = { min = 0.0, max = 1.0 }
"optim.lr" = { min = 0.0 }
"optim.kind" = { choices = ["adamw", "sgd"] }
"""


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Spec:
    path = tmp_path_factory.mktemp("job") / "train.toml"
    path.write_text(JOB)
    return read_spec(path, "labs/x/train.toml")


def spec_of(tmp_path: Path, text: str) -> Spec:
    path = tmp_path / "job.toml"
    path.write_text(text)
    return read_spec(path, "job.toml")


def test_defaults_nested_and_flat(spec: Spec) -> None:
    config = resolve_spec(spec, "laptop")
    assert config.flat["optim.lr"] == 1e-3
    assert config.nested["optim"] == {"lr": 1e-3, "kind": "adamw"}
    assert config.nested["steps"] == 100
    assert config.profile == "laptop"


def test_profile_converts_whole_numbers_to_floats(spec: Spec) -> None:
    config = resolve_spec(spec, "tiny")
    assert config.flat["steps"] == 5
    assert type(config.flat["optim.lr"]) is float


def test_order_is_defaults_profile_config_set(spec: Spec) -> None:
    file = check(spec, {"steps": 6, "clip": 2.0}, "file")
    config = resolve_spec(spec, "tiny", [file, parse_sets(spec, ["steps=7"])])
    assert (config.flat["steps"], config.flat["clip"], config.flat["optim.lr"]) == (7, 2.0, 1.0)


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("steps=7", "steps", 7),
        ("steps= 1_000 ", "steps", 1000),
        ("optim.lr=0.0010000000000000002", "optim.lr", 0.0010000000000000002),
        ("optim.lr=1e-4", "optim.lr", 1e-4),
        ("optim.lr=3", "optim.lr", 3.0),
        ("optim.lr=.5", "optim.lr", 0.5),
        ("optim.lr=inf", "optim.lr", math.inf),
        ("clip=off", "clip", "off"),
        ("clip=0", "clip", 0.0),
        ("ramp=10", "ramp", 10),
        ("compile=true", "compile", True),
        ("name=a b = c", "name", "a b = c"),
        ("name=", "name", ""),
        ('name="q"', "name", '"q"'),
        ("betas=[0.5, 1]", "betas", [0.5, 1.0]),
        ("sizes=[]", "sizes", []),
        ('empty=["a", "b"]', "empty", ["a", "b"]),
        ("optim.kind=sgd", "optim.kind", "sgd"),
    ],
)
def test_set(spec: Spec, word: str, key: str, value: object) -> None:
    found = parse_sets(spec, [word])[key]
    assert found == value
    assert type(found) is type(value)


def test_the_last_of_equal_sets_wins(spec: Spec) -> None:
    assert parse_sets(spec, ["steps=7", "steps=8"]) == {"steps": 8}


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("steps", "not key=value"),
        ("=3", "not key=value"),
        ("stepz=3", "did you mean steps"),
        ("lr=3", "did you mean optim.lr"),
        ("optim=3", "is a table; set one of optim.lr, optim.kind"),
        ("profiles.tiny.steps=3", "cannot be overridden"),
        ("steps=1.5", "1.5 is not a whole number"),
        ("steps=many", "'many' is not a whole number"),
        ("steps=true", "not a whole number"),
        ("steps=0", "0 is below 1"),
        ("steps=1001", "1001 is above 1000"),
        ("steps=nan", "not a whole number"),
        ("steps=" + "9" * 30, "beyond 64 bits"),
        ("optim.lr=nan", "nan is below 0.0"),
        ("optim.lr=" + "9" * 400, "beyond 64 bits"),
        ("optim.lr=-1", "-1.0 is below 0.0"),
        ("clip=of", "'of' is not a number or 'off'"),
        ("ramp=1.5", "1.5 is not a whole number or 'off'"),
        ("compile=1", "'1' is not true or false"),
        ("compile=True", "'True' is not true or false"),
        ("betas=0.9,0.95", "is not a list"),
        ("betas=[0.9, 2]", "2.0 is above 1.0"),
        ("betas=[0.9", "is not a list"),
        ("betas=[0.9]\nsteps=3", "is not a list"),
        ("sizes=[1.5]", "1.5 is not a whole number"),
        ("optim.kind=adam", "did you mean adamw"),
    ],
)
def test_set_refused_in_one_line(spec: Spec, word: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_sets(spec, [word])
    line = str(caught.value)
    assert says in line
    assert "\n" not in line


@given(st.floats(allow_nan=False, min_value=0.0))
def test_set_keeps_every_bit_of_a_float(number: float) -> None:
    spec = Spec("x", {"lr": 1.0})
    found = parse_sets(spec, [f"lr={number!r}"])["lr"]
    assert isinstance(found, float)
    assert found.hex() == number.hex()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a = 1\nb = = 2\n", "job.toml:2: not valid TOML"),
        ("a = 1\nb = [1,\n", "job.toml:3: not valid TOML"),
        ("a = 2020-01-01\n", "job.toml: a: date is not a kind of value"),
        ('a = [1, "x"]\n', "a list holds values of one kind"),
        ("a = [[1]]\n", "a list holds values of one kind"),
        ("a = [{b = 1}]\n", "a list holds values of one kind"),
        ('"a.b" = 1\n', "the key 'a.b' cannot be used"),
        ("a = 0\n[schema]\na = {min = 1}\n", "job.toml: a: 0 is below 1"),
        ("a = 0\n[schema]\nb = {min = 1}\n", "the schema names 'b', which has no default"),
        ("a = 0\n[schema]\na = {mini = 1}\n", "did you mean min"),
        ("[o]\na = 0\n[schema]\no.a = {min = 1}\n", "a dotted key needs quotes"),
        ("a = 0\n[schema]\na = {min = true}\n", "min cannot be true"),
        ("a = 0\n[schema]\na = {words = [1]}\n", "words are strings"),
        ("a = 0\n[schema]\na = 3\n", "a schema entry is a table"),
        ("a = 0\nschema = 3\n", "'schema' is kept for a table"),
        ("a = 0\n[profiles.t]\nab = 1\n", "job.toml: profiles.t: unknown key 'ab'"),
        ("a = 0\n[profiles.t]\na = 1.5\n", "job.toml: profiles.t: a: 1.5 is not a whole number"),
        ("a = 0\n[profiles]\nt = 1\n", "a profile is a table"),
        ('a = "x"\n[schema]\na = {min = 1}\n', "'x' is not a number"),
        ("a = 99999999999999999999\n", "beyond 64 bits"),
    ],
)
def test_a_faulty_job_file_is_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        spec_of(tmp_path, text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_list_of_whole_and_broken_numbers_is_one_of_floats(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "a = [1, 0.5]\n")
    assert spec.defaults["a"] == [1.0, 0.5]
    assert all(type(item) is float for item in spec.defaults["a"])  # type: ignore[union-attr]


def test_not_utf8_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_bytes(b'a = "\xff"\n')
    with pytest.raises(InputError, match="not UTF-8 text"):
        read_spec(tmp_path / "job.toml", "job.toml")
    with pytest.raises(InputError, match="no such file"):
        read_spec(tmp_path / "none.toml", "none.toml")
    with pytest.raises(InputError, match="cannot be read"):
        read_spec(tmp_path, "a folder")
