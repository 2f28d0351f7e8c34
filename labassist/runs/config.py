"""A job's numbers: typed defaults, bounds, profiles, and overrides that are checked before anything runs.

A job file is TOML. Its keys are the defaults, and each default gives its key's type. `[profiles.NAME]` holds
overrides under a name; `[schema]` holds bounds, one entry a dotted key.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labassist.errors import InputError, did_you_mean

RESERVED = ("profiles", "schema")
LARGEST = 2**63
"""Whole numbers stay below this, so that every JSON reader keeps them exact."""

Value = bool | int | float | str | list[Any]
Flat = dict[str, Value]


@dataclass(frozen=True)
class Bound:
    """What a key's value may be, beyond its type."""

    min: float | None = None
    max: float | None = None
    choices: tuple[Value, ...] = ()
    words: tuple[str, ...] = ()
    """Words allowed in place of the number, as `clip = "off"`."""
    help: str = ""


@dataclass(frozen=True)
class Spec:
    """A job file, read and checked."""

    file: str
    """As it is named in errors."""
    defaults: Flat
    bounds: dict[str, Bound] = field(default_factory=dict)
    profiles: dict[str, Flat] = field(default_factory=dict)


@dataclass(frozen=True)
class Config:
    """A job's numbers for one run."""

    profile: str
    flat: Flat
    """Dotted key -> value, in the order of the job file."""

    @property
    def nested(self) -> dict[str, Any]:
        """The same as tables within tables, as the job file has them."""
        tables: dict[str, Any] = {}
        for key, value in self.flat.items():
            *path, last = key.split(".")
            table = tables
            for name in path:
                table = table.setdefault(name, {})
            table[last] = value
        return tables


def read_toml(path: Path, name: str | None = None) -> dict[str, Any]:
    """Return the tables of a TOML file. Raises InputError naming the file, and the line of a syntax error."""
    name = name or str(path)
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        raise InputError("no such file", where=name, mend="check the path") from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=name) from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"not UTF-8 text (byte {error.start})", where=name, mend="save it as UTF-8"
        ) from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at (?:line (\d+), column (\d+)|end of document)\)$", str(error))
        line = found[1] if found and found[1] else str(text.count("\n") + 1)
        what = str(error)[: found.start()].strip() if found else str(error)
        raise InputError(f"not valid TOML: {what}", where=f"{name}:{line}", mend="mend that line") from None


def read_spec(path: Path, name: str) -> Spec:
    """Read a job file, called `name` in errors. Every default and every profile is checked against the bounds."""
    tables = read_toml(path, name)
    bounds = {key: _bound(key, entry, name) for key, entry in _table(tables, "schema", name).items()}
    raw = flatten({key: value for key, value in tables.items() if key not in RESERVED}, name)
    for key in bounds:
        if key not in raw:
            raise InputError(
                f"the schema names {key!r}, which has no default{did_you_mean(key, raw)}",
                where=name,
                mend="give it a default above, or take the entry out",
            )
    defaults = {key: _default(key, value, bounds.get(key, Bound()), name) for key, value in raw.items()}
    spec = Spec(name, defaults, bounds)
    profiles: dict[str, Flat] = {}
    for profile, overrides in _table(tables, "profiles", name).items():
        place = f"{name}: profiles.{profile}"
        if not isinstance(overrides, dict):
            raise InputError(
                "a profile is a table of overrides", where=place, mend=f"write [profiles.{profile}]"
            )
        profiles[profile] = check(spec, flatten(overrides, place), place)
    return Spec(name, defaults, bounds, profiles)


def flatten(tables: Mapping[str, Any], where: str, prefix: str = "") -> dict[str, Any]:
    """Return dotted key -> value. Raises InputError on a key that cannot be told apart when dotted."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        if not re.fullmatch(r"[A-Za-z0-9_-]+", key):
            raise InputError(
                f"the key {key!r} cannot be used", where=where, mend="use letters, digits, `_` and `-` only"
            )
        if isinstance(value, dict):
            flat |= flatten(value, where, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def check(spec: Spec, overrides: Mapping[str, Any], where: str) -> Flat:
    """Return overrides with every key known and every value of its type and within its bounds."""
    return {key: _check(spec, key, value, where) for key, value in overrides.items()}


def parse_sets(spec: Spec, sets: Iterable[str]) -> Flat:
    """Return the overrides of `--set key=value` words; the last of equal keys wins.

    Text is taken as it stands, without quotes; a number keeps every bit; a list is written as in TOML.
    """
    overrides: dict[str, Any] = {}
    for word in sets:
        key, equals, text = word.partition("=")
        key = key.strip()
        if not equals or not key:
            raise InputError("not key=value", where=f"--set {word}", mend="write it as --set optim.lr=0.001")
        where = f"--set {word}"
        _known(spec, key, where)
        overrides |= check(spec, {key: _parse(spec, key, text)}, where)
    return overrides


def resolve_spec(spec: Spec, profile: str, overrides: Iterable[Mapping[str, Value]] = ()) -> Config:
    """Return the configuration: defaults, then the profile's overrides, then each of `overrides` in order."""
    flat = dict(spec.defaults) | spec.profiles.get(profile, {})
    for layer in overrides:
        flat |= layer
    return Config(profile, flat)


def _table(tables: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    """Return a reserved table, empty where there is none."""
    table = tables.get(key, {})
    if not isinstance(table, dict):
        raise InputError(
            f"{key!r} is kept for a table", where=where, mend=f"write [{key}], or name the key otherwise"
        )
    return table


def _bound(key: str, entry: Any, name: str) -> Bound:
    """Return one schema entry. Raises InputError on an unknown or ill-typed attribute."""
    where = f"{name}: schema.{key}"
    if not isinstance(entry, dict):
        raise InputError("a schema entry is a table", where=where, mend='write "key" = { min = 0 }')
    kinds: dict[str, type | tuple[type, ...]] = {
        "min": (int, float),
        "max": (int, float),
        "choices": list,
        "words": list,
        "help": str,
    }
    for attribute, value in entry.items():
        kind = kinds.get(attribute)
        if kind is None:
            if isinstance(value, dict):
                mend = 'a dotted key needs quotes: "optim.lr" = { min = 0 }'
            else:
                mend = f"there are {', '.join(kinds)}"
            raise InputError(
                f"unknown attribute {attribute!r}{did_you_mean(attribute, kinds)}", where=where, mend=mend
            )
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InputError(f"{attribute} cannot be {_show(value)}", where=where, mend="mend the schema")
    words = entry.get("words", [])
    if not all(isinstance(word, str) for word in words):
        raise InputError("words are strings", where=where, mend='write words = ["off"]')
    return Bound(
        entry.get("min"),
        entry.get("max"),
        tuple(entry.get("choices", [])),
        tuple(words),
        entry.get("help", ""),
    )


def _default(key: str, value: Any, bound: Bound, name: str) -> Value:
    """Return a default after checking it against its own type and bounds."""
    where = f"{name}: {key}"
    if isinstance(value, list):
        kinds = {type(item) for item in value}
        if kinds == {int, float}:
            value = [float(item) for item in value]
        elif len(kinds) > 1 or not kinds <= {bool, int, float, str}:
            raise InputError("a list holds values of one kind", where=where, mend="mend the list")
    elif not isinstance(value, (bool, int, float, str)):
        raise InputError(
            f"{type(value).__name__} is not a kind of value here", where=where, mend="write it as text"
        )
    return _bounded(value, bound, where)


def _known(spec: Spec, key: str, where: str) -> None:
    """Raise InputError unless the job has this key."""
    if key in spec.defaults:
        return
    inside = [name for name in spec.defaults if name.startswith(f"{key}.")]
    if inside:
        raise InputError(f"{key!r} is a table", where=where, mend=f"set one of {', '.join(inside)}")
    if key.split(".")[0] in RESERVED:
        raise InputError(f"{key!r} cannot be overridden", where=where, mend=f"edit {spec.file}")
    raise InputError(
        f"unknown key {key!r}{did_you_mean(key, spec.defaults)}", where=where, mend=f"keys are in {spec.file}"
    )


def _check(spec: Spec, key: str, value: Any, where: str) -> Value:
    """Return one override's value, as the type of its default."""
    _known(spec, key, where)
    place = where if where.startswith("--set") else f"{where}: {key}"
    bound = spec.bounds.get(key, Bound())
    if isinstance(value, str) and value in bound.words:
        return value
    kind = _kind(spec.defaults[key], bound)
    if not isinstance(kind, list):
        return _bounded(_typed(value, kind, bound, place), bound, place)
    if not isinstance(value, list):
        raise InputError(f"{_show(value)} is not a list", where=place, mend="write it as [1, 2]")
    items: list[Any] = [_typed(item, kind[0] if kind else type(item), bound, place) for item in value]
    return _bounded(items, bound, place)


def _kind(default: Value, bound: Bound) -> type | list[type]:
    """Return the type that a key's values have; for a list `[type]` of its items, `[]` where none is known."""
    if isinstance(default, list):
        return [type(item) for item in default[:1]]
    if isinstance(default, str) and default in bound.words:
        # The default is the word: the number beside it is whole when its bounds are.
        edges = [edge for edge in (bound.min, bound.max) if edge is not None]
        return int if edges and all(isinstance(edge, int) for edge in edges) else float
    return type(default)


def _typed(value: Any, kind: type, bound: Bound, where: str) -> Value:
    """Return the value as `kind`; a whole number will do for a float, nothing else is converted."""
    if kind is float and type(value) is int:
        return float(_sized(value, where))
    fits = type(value) is kind and kind in _NAMES
    if not fits:
        words = "".join(f" or {word!r}" for word in bound.words)
        name = _NAMES.get(kind, "true, a number or text")
        raise InputError(f"{_show(value)} is not {name}{words}", where=where, mend=f"give {name}{words}")
    typed: Value = value
    return typed


_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def _bounded(value: Value, bound: Bound, where: str) -> Value:
    """Return the value (of a list, each item) after checking its bounds."""
    items: list[Any] = value if isinstance(value, list) else [value]
    for item in items:
        if isinstance(item, str) and item in bound.words:
            continue
        if bound.choices and not any(type(item) is type(one) and item == one for one in bound.choices):
            near = did_you_mean(str(item), map(str, bound.choices))
            names = ", ".join(_show(one) for one in bound.choices)
            raise InputError(f"{_show(item)} is not a choice{near}", where=where, mend=f"choose from {names}")
        if isinstance(item, str):
            if bound.min is not None or bound.max is not None:
                raise InputError(f"{_show(item)} is not a number", where=where, mend="give a number")
            continue
        if isinstance(item, int):
            _sized(item, where)
        # Written so that nan, which compares false with everything, is refused.
        if bound.min is not None and not item >= bound.min:
            raise InputError(f"{_show(item)} is below {bound.min}", where=where, mend=_range(bound))
        if bound.max is not None and not item <= bound.max:
            raise InputError(f"{_show(item)} is above {bound.max}", where=where, mend=_range(bound))
    return value


def _sized(number: int, where: str) -> int:
    """Return the number. Raises InputError when it does not fit into 64 bits."""
    if not -LARGEST <= number < LARGEST:
        raise InputError("the number is beyond 64 bits", where=where, mend="give a smaller one")
    return number


def _range(bound: Bound) -> str:
    """Say in words what a bound admits."""
    low = "" if bound.min is None else f"at least {bound.min}"
    high = "" if bound.max is None else f"at most {bound.max}"
    words = "".join(f", or {word!r}" for word in bound.words)
    return f"give {' and '.join(part for part in (low, high) if part)}{words}"


def _parse(spec: Spec, key: str, text: str) -> Any:
    """Return the text of a `--set` as the value it stands for; what does not fit is left for `_check` to name."""
    bound = spec.bounds.get(key, Bound())
    if text.strip() in bound.words:
        return text.strip()
    kind = _kind(spec.defaults[key], bound)
    if kind is str:
        return text
    text = text.strip()
    if isinstance(kind, list):
        try:
            value = tomllib.loads(f"value = {text}")
        except tomllib.TOMLDecodeError:
            value = {}
        return value["value"] if set(value) == {"value"} else text
    if kind is bool:
        return {"true": True, "false": False}.get(text, text)
    try:
        return int(text) if re.fullmatch(r"[+-]?[0-9]+(_[0-9]+)*", text) else float(text)
    except ValueError:
        return text


def _show(value: Any) -> str:
    """Return a value as TOML would have it."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)
