"""Secrets are found in what they really look like, ordinary code is left alone, and references come back."""

from __future__ import annotations

import random
import string
from pathlib import Path

import pytest

import labassist
from labassist.errors import InputError
from labassist.ledger.secrets import (
    denied,
    fill,
    redact_argv,
    redact_config,
    redact_env,
    redact_text,
    scan,
    secret_name,
)


def noise(length: int, letters: str = string.ascii_letters + string.digits) -> str:
    """Random characters, so that no token stands in this file."""
    draw = random.Random(length)
    return "1aB" + "".join(draw.choice(letters) for _ in range(length - 3))


HUB = "hf" + "_" + noise(34)
SECRETS = {
    "hub-token": f'login("{HUB}")',
    "aws-access-key": "id = AK" + "IA" + "Q7RT5MZX2PLW93KD",
    "github-token": f"git clone https://x:gh{'p_'}{noise(36)}@host/r",
    "api-key": f"client = Client('sk{'-proj-'}{noise(48)}')",
    "slack-token": f"post(xox{'b-'}1234567890-{noise(24)})",
    "private-key": "-----BEGIN OPENSSH " + "PRIVATE KEY-----",
    "json-web-token": f"Bearer ey{'J'}{noise(20)}.ey{'J'}{noise(30)}.{noise(40)}",
    "google-api-key": f"key=AI{'za'}{noise(35)}",
    "url-password": "pip install https://me:" + "s3cr3tPw@host/simple",
    "assigned-password": "db.connect(password='" + "hunter2x9Q!')",
    "assigned-key": f'"api_key": "{noise(32, "0123456789abcdef")}",',
    "assigned-token": f"token: str = '{noise(20)}'",
    "assigned-secret": f"CLIENT_SECRET={noise(24)}",
}


@pytest.mark.parametrize("kind", SECRETS)
def test_what_secrets_look_like(kind: str) -> None:
    text = f"import os\n\n{SECRETS[kind]}\nprint(1)\n"
    assert [(finding.line, finding.kind) for finding in scan(text)] == [(3, kind)]


def test_what_a_variable_holds_is_a_secret_wherever_it_stands() -> None:
    plain = noise(20, string.ascii_lowercase)
    env = {"WANDB_API_KEY": plain, "DB_PASSWORD": "postgres", "LS_COLORS": noise(40)}
    text = f"import os\n\nlogin('{plain}')\nconnect('postgres')\nx = '{env['LS_COLORS']}'\n"
    assert scan(text) == []
    assert [(finding.line, finding.kind) for finding in scan(text, env)] == [
        (3, "the value of WANDB_API_KEY")
    ]


ORDINARY = [
    'tokenizer = "gpt2"',
    "token_ids = [1, 2, 3]",
    'pad_token="<pad>"',
    'HF_TOKEN = os.environ["HF_TOKEN"]',
    'token = os.getenv("HF_TOKEN1234")',
    'api_key = config["api_key_1"]',
    "token=next_token_ids_for_batch12",
    'image_token = "<|image_pad_01|>"',
    'password = getpass.getpass("Password for host1234")',
    'secret = "${MY_SECRET_1}"',
    'token = "your_token_here_1234"',
    'cache_key = f"{a}_1234567_{b}"',
    "sk-learn-contrib-some-long-name-2024",
    "AKIA" + "IOSFODNN7EXAMPLE",
    "hf_hub_download_with_a_really_long_function_name(x)",
    'url = "https://user:password@host"',
    'sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"',
    'model = "meta-llama/Llama-3.1-8B-Instruct"',
    'key = "model.layers.10.self_attn.q_proj.weight"',
    "access_token: str | None = None",
    'next_token = "Zx91kLmQ8s7"',
    "git@github.com:someone/something.git",
]


@pytest.mark.parametrize("line", ORDINARY)
def test_ordinary_code_is_left_alone(line: str) -> None:
    assert scan(line) == []


def test_this_project_holds_no_secret() -> None:
    """Several thousand lines of machine learning code, and not one false alarm."""
    root = Path(labassist.__file__).parent
    found = {str(path): scan(path.read_text()) for path in root.rglob("*.py")}
    assert {path: findings for path, findings in found.items() if findings} == {}


def test_lines_are_counted_also_in_long_texts() -> None:
    lines = ["token = 1"] * 5000
    lines[1234] = lines[4321] = HUB
    assert [finding.line for finding in scan("\n".join(lines))] == [1235, 4322]
    assert [finding.line for finding in scan("x" * 100_000 + HUB)] == []
    assert [finding.line for finding in scan("x" * 100_000 + " " + HUB)] == [1]


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "hub_token", "token", "api-key", "db.password", "WANDB_API_KEY", "CI_JOB_TOKEN", "apiKey"],
)
def test_names_of_secrets(name: str) -> None:
    assert secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer",
        "max_tokens",
        "pad_token",
        "EOS_TOKEN",
        "token_ids",
        "sort_key",
        "HF_TOKEN_PATH",
        "PWD",
        "",
    ],
)
def test_names_of_other_things(name: str) -> None:
    assert not secret_name(name)


def test_files_that_are_secret_by_name() -> None:
    for path in (".env", "a/.env.local", "keys/server.pem", ".ssh/id_ed25519", "prod.env", ".netrc"):
        assert denied(path)
    for path in ("environment.py", ".env.example", "id_rsa.pub", "keys.py", "env", "monkey.py"):
        assert not denied(path)


def test_the_environment_is_kept_by_a_list_of_names() -> None:
    env = {
        "CUDA_VISIBLE_DEVICES": "0",
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "HF_HOME": "/data/${USER}",
        "HF_TOKEN": HUB,
        "HF_ENDPOINT": "https://me:" + "s3cr3tPw@mirror",
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "NCCL_COMMENT": f"uses {HUB}",
        "HOME": "/root",
        "WANDB_API_KEY": noise(40),
    }
    kept, references = redact_env(env)
    assert kept == {
        "CUDA_VISIBLE_DEVICES": "0",
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "HF_HOME": "/data/$${USER}",
        "HF_TOKEN": "${HF_TOKEN}",
        "HF_ENDPOINT": "${HF_ENDPOINT}",
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "NCCL_COMMENT": "${NCCL_COMMENT}",
    }
    assert references == {"HF_TOKEN", "HF_ENDPOINT", "NCCL_COMMENT"}
    assert fill(kept, env) == {name: env[name] for name in kept}


def test_a_command_line_loses_its_secrets_and_nothing_else() -> None:
    argv = [
        "python",
        "train.py",
        "--token=abc",
        "--api-key",
        "shortkey",
        "HF_TOKEN=abc",
        "--tokenizer",
        "gpt2",
    ]
    argv += [
        "--max-tokens",
        "10",
        "--pad_token",
        "<pad>",
        "--url",
        "https://me:" + "pw12@h/x",
        "--lr=1e-4",
        HUB,
    ]
    argv += ["--use-auth-token", "True", "--token", "--verbose", "--password", "123456789", "a=${HOME}"]
    assert redact_argv(argv) == [
        *["python", "train.py", "--token=${TOKEN}", "--api-key", "${API_KEY}", "HF_TOKEN=${HF_TOKEN}"],
        *["--tokenizer", "gpt2", "--max-tokens", "10", "--pad_token", "<pad>"],
        *["--url", "https://me:${URL_PASSWORD}@h/x", "--lr=1e-4", "${HUB_TOKEN}"],
        *["--use-auth-token", "True", "--token", "--verbose", "--password", "${PASSWORD}", "a=$${HOME}"],
    ]


def test_two_secrets_never_share_a_name() -> None:
    assert redact_argv(["--token=one", "--token=two", "--token=one"]) == [
        "--token=${TOKEN}",
        "--token=${TOKEN_2}",
        "--token=${TOKEN}",
    ]


def test_the_environment_names_a_value_that_it_holds() -> None:
    env = {"MY_SERVICE_TOKEN": "opensesame", "USER": "opensesame", "TOKEN": "another one"}
    assert redact_argv(["--token=opensesame", "x:opensesame:y", "--token=third"], env) == [
        "--token=${MY_SERVICE_TOKEN}",
        "x:${MY_SERVICE_TOKEN}:y",
        "--token=${TOKEN_2}",
    ]


def test_a_configuration_loses_its_secrets() -> None:
    flat = {
        "hub.token": "abcdef",
        "optim.lr": 0.1,
        "model.pad_token": "<pad>",
        "note": f"with {HUB}",
        "names": ["a", "${x}", HUB],
        "tokens": 5,
    }
    clean = redact_config(flat)
    assert clean == {
        "hub.token": "${HUB_TOKEN}",
        "optim.lr": 0.1,
        "model.pad_token": "<pad>",
        "note": "with ${HUB_TOKEN_2}",
        "names": ["a", "$${x}", "${HUB_TOKEN_2}"],
        "tokens": 5,
    }
    assert fill(clean, {"HUB_TOKEN": "abcdef", "HUB_TOKEN_2": HUB}) == flat


@pytest.mark.parametrize(
    "text", ["${X}", "$${X}", "$$${X}", "$", "${", "$${", "a${b}c$${d}", "${}", "$$$${", "}{$"]
)
def test_literal_text_that_looks_like_a_reference_comes_back(text: str) -> None:
    assert fill(redact_argv([text]), {"X": "wrong", "b": "wrong"}) == [text]


def test_filling_says_what_is_missing() -> None:
    with pytest.raises(InputError, match="HF_TOKEN, WANDB_API_KEY") as caught:
        fill({"a": "${WANDB_API_KEY}", "b": ["${HF_TOKEN}"], "c": "${HOME}"}, {"HOME": "/"})
    assert "export HF_TOKEN" in caught.value.mend


def test_a_log_is_shown_without_secrets() -> None:
    text = f"step 1\nlogged in with {HUB} as me\nusing opensesame\ntokens/s 12\n"
    assert redact_text(text, {"DOOR_TOKEN": "opensesame"}) == (
        "step 1\nlogged in with [redacted hub-token] as me\nusing [redacted DOOR_TOKEN]\ntokens/s 12\n"
    )
    plain = "no secret, ${HOME}\n\n\ntoken 5"
    assert redact_text(plain) == plain
