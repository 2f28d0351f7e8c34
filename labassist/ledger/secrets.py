"""Keep secrets out of the ledger: find them, put `${NAME}` in their place, fill them in again.

Values that look like tokens, keys or passwords in the environment, the command line and the configuration
become references, which a replay resolves from its own environment. A literal `${` in a value is written
`$${`, so the two are never confused.

Own patterns and no library: the one well-kept candidate, detect-secrets, takes 180 ms to import, brings
`requests` along, has no pattern for hub tokens, and calls every SHA-256 in a file a secret.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from labassist.errors import InputError

ALLOWED_PREFIXES = (
    "CUDA_",
    "NCCL_",
    "OMP_",
    "MKL_",
    "KMP_",
    "ATEN_",
    "ONEDNN_",
    "DNNL_",
    "TORCH_",
    "PYTORCH_",
    "CUBLAS_",
    "HF_",
    "VLLM_",
)
"""Environment variables that can change a result, and so are recorded (with PYTHONHASHSEED)."""


def _words(text: str) -> set[str]:
    return set(text.split())


_DENIED_NAMES = _words(".env .netrc .pgpass .pypirc .npmrc .git-credentials .htpasswd credentials.json")
_DENIED_SUFFIXES = _words(".env .pem .key .p12 .pfx .jks .keystore .kdbx .ppk .asc .gpg")
_DENIED_KEYS = re.compile(r"id_(rsa|dsa|ecdsa|ed25519)")

_SHAPES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("aws-access-key", r"(?<![A-Za-z0-9])(?:AKIA|ASIA)(?![A-Z0-9]{9}EXAMPLE)[A-Z0-9]{16}(?![A-Za-z0-9])"),
        (
            "github-token",
            r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{36,400}|github_pat_[A-Za-z0-9_]{40,400})",
        ),
        ("gitlab-token", r"(?<![A-Za-z0-9])glpat-[A-Za-z0-9_-]{20,400}"),
        ("hub-token", r"(?<![A-Za-z0-9_])(?:hf|api_org)_[A-Za-z0-9]{30,400}(?![A-Za-z0-9_])"),
        (
            "api-key",
            r"(?<![A-Za-z0-9_-])sk-(?:[a-f0-9]{32}(?![\w-])"
            r"|(?=[A-Za-z_-]{0,199}[0-9])(?=[^A-Z]{0,199}[A-Z])[A-Za-z0-9_-]{20,400})",
        ),
        ("google-api-key", r"(?<![A-Za-z0-9])AIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])"),
        ("slack-token", r"(?<![A-Za-z0-9])xox[abeoprs]-[A-Za-z0-9-]{16,400}"),
        (
            "json-web-token",
            r"(?<![A-Za-z0-9])eyJ[A-Za-z0-9_-]{8,999}\.eyJ[A-Za-z0-9_-]{8,4999}\.[A-Za-z0-9_-]{8,4999}",
        ),
        ("private-key", r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----"),
    )
)
_HINTS = _words(
    "AKIA ASIA ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- hf_ api_org_ sk- AIza xox eyJ PRIVATE :// "
    "oken OKEN key Key KEY ecret ECRET assw ASSW assphrase ASSPHRASE redential REDENTIAL"
)
"""Every secret that `_spans` knows has one of these in its line."""
_URL = re.compile(
    r"(?P<before>[a-z][a-z0-9+.-]{0,20}://[^\s:/@'\"<>{}$]{0,99}:)(?P<value>[^\s/@'\"<>{}$]{1,999})(?=@)",
    re.I,
)
_ASSIGNED = re.compile(
    r"""(?<![\w.])(?P<name>[A-Za-z_][\w.-]{0,80})["']?\s*(?::\s*[A-Za-z_]\w*\s*=|[:=])\s*"""
    r"""(?:(?P<quote>["'])(?P<quoted>[^"'\s]{8,999})(?P=quote)|(?P<bare>[^\s"'#,;()\[\]{}<>$]{16,})\s*(?:\#.*)?$)"""
)
_PLACEHOLDER = re.compile(r"example|placeholder|changeme|your[_-]|xxxx|\*\*\*\*|dummy|[<>{}$]", re.I)

_SECRET_WORDS = _words(
    "passphrase secret secrets credential credentials "
    "apikey accesskey secretkey privatekey authtoken accesstoken"
)
_MAKERS = _words(
    "hf hub huggingface github gitlab gh wandb slack openai anthropic comet neptune mlflow aws azure"
)
_KEY_KINDS = _MAKERS | _words("api access secret private auth encryption signing ssh account license")
_TOKEN_KINDS = _MAKERS | _words(
    "api auth access bearer secret refresh session login personal oauth deploy user bot jupyter security write"
)
_TEXT_TOKENS = _words(
    "pad eos bos unk mask sep cls special image video audio start end stop prompt next last first new max min "
    "num per think begin boi eoi sot eot implicit"
)
"""What stands before `token` where it is a piece of text."""
_PLAIN = re.compile(r"|true|false|yes|no|none|null|on|off|auto|[-+.\de]{0,5}|[<\[].*[>\]]", re.I)
_REFERENCE = re.compile(r"\$\$\{|\$\{([A-Za-z_]\w*)\}")
_MAX_LINE = 20_000
"""Longer lines are data (base64, minified code): they are searched for the shapes of tokens only."""

_LONG = 16
"""Characters from which on a variable's value is no word that code has anyway, as `postgres` is a password."""


@dataclass(frozen=True)
class Finding:
    """A secret in a text: its 1-based line, and what kind it is (never its value)."""

    line: int
    kind: str


def denied(path: str) -> bool:
    """Say whether a file of this name is a secret by its name alone (`.env`, a key file)."""
    name = PurePosixPath(path).name.lower()
    if name.endswith((".example", ".sample", ".template", ".pub")):
        return False
    return (
        name in _DENIED_NAMES
        or name.startswith(".env.")
        or PurePosixPath(name).suffix in _DENIED_SUFFIXES
        or bool(_DENIED_KEYS.match(name))
        or path.endswith((".aws/credentials", ".kaggle/kaggle.json", ".docker/config.json"))
    )


def scan(text: str, env: Mapping[str, str] | None = None) -> list[Finding]:
    """Return the secrets in a text, one a line at most, in order: by their shape, and long ones of `env` by value."""
    found: dict[int, str] = {}
    for value, name in _secret_values(env or {}):
        if len(value) >= _LONG and value in text:
            found[text.count("\n", 0, text.find(value)) + 1] = f"the value of {name}"
    number, at = 1, 0
    for start in _hinted_lines(text):
        number, at = number + text.count("\n", at, start), start
        line = text[start : text.find("\n", start) % (len(text) + 1)]
        if span := next(_spans(line), None):
            found[number] = span[0]
    return [Finding(line, found[line]) for line in sorted(found)]


def secret_name(name: str) -> bool:
    """Say whether a variable, option or key of this name holds a secret.

    `HF_TOKEN`, `hub_token`, `--api-key` and `db.password` do; `pad_token`, `tokenizer`, `max_tokens`,
    `token_ids` and `sort_key` do not. Of names in capitals, as of variables, any token is one but those of
    text; of other names only the kinds of token that are known to be secrets.
    """
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    words = ["", *(word for word in re.split(r"[\W_]+", spaced.lower()) if word)]
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last == "key":
        return before in _KEY_KINDS
    if last == "token":
        known = before in _TOKEN_KINDS or not before
        return known or (name.isupper() and before not in _TEXT_TOKENS)
    return last in _SECRET_WORDS or last.endswith(("password", "passwd"))


def redact_env(env: Mapping[str, str]) -> tuple[dict[str, str], set[str]]:
    """Return the variables of the allow-list, secrets as `${NAME}`, and the names so referred to."""
    redact = _Redactor(env)
    kept: dict[str, str] = {}
    references: set[str] = set()
    for name in sorted(env):
        if name != "PYTHONHASHSEED" and not name.startswith(ALLOWED_PREFIXES):
            continue
        value = env[name]
        if _secret_pair(name, value) or redact.text(value) != escape(value):
            kept[name] = "${" + name + "}"
            references.add(name)
        else:
            kept[name] = escape(value)
    return kept, references


def redact_argv(argv: Sequence[str], env: Mapping[str, str] | None = None) -> list[str]:
    """Return a command line with `${NAME}` in place of each secret.

    Covers `--token=V`, `--api-key V`, `HF_TOKEN=V`, `user:V@` in a URL, values with the shape of a token,
    and values that stand in `env` under a secret's name, which then is the name of the reference.
    """
    redact = _Redactor(env or {})
    out: list[str] = []
    option = ""
    for argument in argv:
        name, equals, value = argument.partition("=")
        bare = name.lstrip("-+")
        if option and not argument.startswith("-") and not _PLAIN.fullmatch(argument):
            out.append(redact.reference(argument, option))
        elif equals and re.fullmatch(r"[\w.-]+", bare) and _secret_pair(bare, value):
            out.append(f"{name}={redact.reference(value, bare)}")
        else:
            out.append(redact.text(argument))
        option = bare if name.startswith("-") and not equals and secret_name(bare) else ""
    return out


def redact_config(flat: Mapping[str, Any], env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a flat configuration with `${NAME}` in place of each secret; `hub.token` becomes `${HUB_TOKEN}`."""
    redact = _Redactor(env or {})

    def clean(key: str, value: Any) -> Any:
        if isinstance(value, str):
            return redact.reference(value, key) if _secret_pair(key, value) else redact.text(value)
        if isinstance(value, (list, tuple)):
            return [clean(key, one) for one in value]
        if isinstance(value, dict):
            return {name: clean(f"{key}.{name}", one) for name, one in value.items()}
        return value

    return {key: clean(key, value) for key, value in flat.items()}


def fill(values: Any, env: Mapping[str, str]) -> Any:
    """Return strings, lists and dicts with each `${NAME}` resolved from `env` and each `$${` unescaped.

    Raises InputError that names every variable that is not set.
    """
    missing: set[str] = set()

    def resolve(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return "${"
        if name not in env:
            missing.add(name)
            return ""
        return env[name]

    def walk(value: Any) -> Any:
        if isinstance(value, str):
            return _REFERENCE.sub(resolve, value)
        if isinstance(value, (list, tuple)):
            return [walk(one) for one in value]
        if isinstance(value, dict):
            return {key: walk(one) for key, one in value.items()}
        return value

    filled = walk(values)
    if missing:
        names = ", ".join(sorted(missing))
        raise InputError(
            f"the record has references in place of secrets that are not set here: {names}",
            mend="set them first, for example: " + " ".join(f"export {name}=…;" for name in sorted(missing)),
        )
    return filled


def redact_text(text: str, env: Mapping[str, str] | None = None) -> str:
    """Return a text fit to show or export: each secret replaced by `[redacted KIND]`."""
    for value, name in _secret_values(env or {}):
        text = text.replace(value, f"[redacted {name}]")
    out, at = [], 0
    for start in _hinted_lines(text):
        end = text.find("\n", start)
        end = end if end >= 0 else len(text)
        out += [text[at:start], _replace(text[start:end], lambda kind, _: f"[redacted {kind}]")]
        at = end
    return "".join([*out, text[at:]])


class _Redactor:
    """Gives each secret value a reference: one name for one value, and two values never share a name."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.known = _secret_values(env)
        self.values = {name: value for value, name in self.known}

    def reference(self, value: str, name: str) -> str:
        """Return the reference for a value that was found under `name`."""
        for known, variable in self.known:
            if known == value:
                return "${" + variable + "}"
        base = re.sub(r"\W+", "_", name).strip("_").upper() or "SECRET"
        base = "SECRET_" + base if base[0].isdigit() else base
        chosen, number = base, 2
        while self.values.get(chosen, value) != value:
            chosen, number = f"{base}_{number}", number + 1
        self.values[chosen] = value
        return "${" + chosen + "}"

    def text(self, text: str) -> str:
        """Return a text with literal `${` escaped and each secret in it as a reference."""
        pieces = [(text, False)]
        for value, name in self.known:
            pieces = list(_cut(pieces, value, "${" + name + "}"))
        return "".join(
            piece if done else _replace(piece, lambda kind, value: self.reference(value, kind), escape)
            for piece, done in pieces
        )


def _cut(pieces: Iterable[tuple[str, bool]], value: str, reference: str) -> Iterator[tuple[str, bool]]:
    """Split the open pieces of a text at `value`, putting a finished reference between them."""
    for piece, done in pieces:
        if done:
            yield piece, True
            continue
        first, *rest = piece.split(value)
        yield first, False
        for part in rest:
            yield reference, True
            yield part, False


def _secret_values(env: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the secrets of an environment that are long enough to search for, longest first."""
    found = {
        value: name for name, value in sorted(env.items()) if _secret_pair(name, value) and len(value) >= 8
    }
    return sorted(found.items(), key=lambda pair: (-len(pair[0]), pair[0]))


def _secret_pair(name: str, value: str) -> bool:
    """Say whether a named value is a secret: the name says so, and the value is more than a switch."""
    return secret_name(name) and not _PLAIN.fullmatch(value)


def escape(text: str) -> str:
    """Return a literal as `fill` gives it back."""
    return text.replace("${", "$${")


def _replace(
    line: str, new: Callable[[str, str], str], rest: Callable[[str], str] = lambda text: text
) -> str:
    """Return `line` with `new(kind, value)` for each secret in it and `rest(text)` for what lies between."""
    out, at = [], 0
    for kind, start, end in _spans(line):
        out += [rest(line[at:start]), new(kind, line[start:end])]
        at = end
    return "".join([*out, rest(line[at:])])


def _hinted_lines(text: str) -> list[int]:
    """Return where the lines start that are worth a closer look: plain searches are 50 times faster."""
    starts: set[int] = set()
    for hint in _HINTS:
        at = text.find(hint)
        while at >= 0:
            starts.add(text.rfind("\n", 0, at) + 1)
            end = text.find("\n", at)
            at = text.find(hint, end) if end >= 0 else -1
    return sorted(starts)


def _spans(line: str) -> Iterator[tuple[str, int, int]]:
    """Yield `(kind, start, end)` of each secret in one line, in order and not overlapping."""
    found = [
        (match.start(), match.end(), kind)
        for kind, shape in _SHAPES
        for match in shape.finditer(line)
        if kind == "private-key" or _entropy(match[0][4:]) >= 3
    ]
    found += [
        (match.start("value"), match.end("value"), "url-password")
        for match in _URL.finditer(line)
        if not _PLACEHOLDER.search(match["value"])
        and match["value"].lower() not in ("password", "pass", "token")
    ]
    if len(line) <= _MAX_LINE:
        for match in _ASSIGNED.finditer(line):
            group = "quoted" if match["quote"] else "bare"
            if secret_name(match["name"]) and _looks_random(match[group], quoted=group == "quoted"):
                found.append((match.start(group), match.end(group), "assigned-" + _last_word(match["name"])))
    at = 0  # of two that overlap, the one that starts first, and then the longer one
    for start, end, kind in sorted(found, key=lambda span: (span[0], -span[1])):
        if start >= at:
            yield kind, start, end
            at = end


def _last_word(name: str) -> str:
    """Return the last word of a name: password, token, key, secret."""
    return re.split(r"[\W_]+", name.lower())[-1]


def _looks_random(value: str, *, quoted: bool) -> bool:
    """Say whether a literal looks like a secret and not like a word, a path, a name or a placeholder."""
    if _PLACEHOLDER.search(value) or _PLAIN.fullmatch(value):
        return False
    mixed = any(c.isdigit() for c in value) and any(c.isalpha() for c in value)
    if not mixed or _entropy(value) < (2.5 if quoted else 3):
        return False
    # Words and numbers joined by signs (`tiny-gpt2`, `os.environ`, `data/train_v2`) are names.
    return not re.fullmatch(r"[A-Za-z]+\d{0,2}([-_./][A-Za-z0-9]{1,8}){0,6}", value)


def _entropy(text: str) -> float:
    """Return Shannon's entropy of the characters, in bits a character."""
    return -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values()) if text else 0.0
