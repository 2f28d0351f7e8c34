"""Read a pickle without running it: a small pickle machine that calls nothing and imports nothing.

`pickletools.genops` decodes the opcodes; this machine builds dicts, lists, tuples and plain values, and puts
a `Global` or an `Obj` where the pickle would import or call something. Tensors become `Tensor`: data type,
shape and the storage that holds the bytes. Every global that a pickle names is kept, so that those outside
an allow-list can be reported.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Hashable
from typing import Any, BinaryIO

from labassist.resume.pickled import DTYPES, Global, Obj, Storage, Tensor

_MARK = object()
_DEPTH = 6
"""Nesting of tuples that a key of a dict may have: the hash of a deeper one would recurse for ever."""
_STORAGES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "UntypedStorage": "U8",
    "BoolStorage": "BOOL",
    "ComplexFloatStorage": "C64",
    "ComplexDoubleStorage": "C128",
}


class BadPickle(Exception):
    """The bytes are no whole pickle. `globals` are the names seen up to there."""

    def __init__(self, what: str, names: set[Global]) -> None:
        super().__init__(what)
        self.globals = names


def load(file: BinaryIO, names: set[Global]) -> Any:
    """Return the value of the pickle at the file's position, and leave the file behind its end.

    The globals that it names are added to `names`. Raises BadPickle when it is cut or malformed.
    """
    machine = _Machine(names)
    try:
        for opcode, argument, _position in pickletools.genops(file):
            if opcode.name == "STOP":
                return machine.pop()
            machine.step(opcode.name, argument)
    except BadPickle:
        raise
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, AttributeError, MemoryError) as error:
        raise BadPickle(f"not a whole pickle: {error}", names) from error
    raise BadPickle("the pickle has no end", names)


class _Machine:
    def __init__(self, names: set[Global]) -> None:
        self.names = names
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise ValueError("a mark where a value should be")
        return value

    def marked(self) -> list[Any]:
        """Take what lies above the last mark, and the mark."""
        for at in range(len(self.stack) - 1, -1, -1):
            if self.stack[at] is _MARK:
                values = self.stack[at + 1 :]
                del self.stack[at:]
                return values
        raise ValueError("no mark")

    def step(self, name: str, argument: Any) -> None:
        handler = _HANDLERS.get(name)
        if handler:
            handler(self, argument)
        elif name in _PUSH:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in ("PROTO", "FRAME"):
            pass
        elif name.startswith("EXT"):
            self.stack.append(self.found("copyreg", f"extension {argument}"))
        else:
            raise ValueError(f"unexpected opcode {name}")

    def found(self, module: Any, name: Any) -> Global:
        if not isinstance(module, str) or not isinstance(name, str):
            raise ValueError("a global whose name is no text")
        known = Global(module, name)
        self.names.add(known)
        return known

    def put(self, argument: Any) -> None:
        self.memo[len(self.memo) if argument is None else int(argument)] = self.stack[-1]

    def get(self, argument: Any) -> None:
        self.stack.append(self.memo[int(argument)])

    def extend(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(values)
        elif isinstance(target, Obj):
            target.items.extend(values)
        else:
            raise ValueError("items for what is no list")

    def set_items(self, values: list[Any]) -> None:
        target = self.stack[-1]
        table = target.pairs if isinstance(target, Obj) else target
        if not isinstance(table, dict) or len(values) % 2:
            raise ValueError("items for what is no dict")
        for at in range(0, len(values), 2):
            table[_key(values[at])] = values[at + 1]

    def reduce(self, _argument: Any) -> None:
        arguments = self.pop()
        what = self.pop()
        self.stack.append(_called(what, arguments if isinstance(arguments, tuple) else (arguments,)))

    def build(self, _argument: Any) -> None:
        state = self.pop()
        if isinstance(self.stack[-1], Obj):
            self.stack[-1].state = state

    def new(self, _argument: Any) -> None:
        arguments = self.pop()
        self.stack.append(Obj(self.pop(), arguments))

    def new_with_keywords(self, _argument: Any) -> None:
        keywords, arguments = self.pop(), self.pop()
        self.stack.append(Obj(self.pop(), arguments, pairs=keywords if isinstance(keywords, dict) else {}))

    def instance(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        arguments = self.marked()
        self.stack.append(Obj(self.found(module, name), tuple(arguments)))

    def obj(self, _argument: Any) -> None:
        what, *arguments = self.marked()
        self.stack.append(Obj(what, tuple(arguments)))

    def global_(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self.stack.append(self.found(module, name))

    def stack_global(self, _argument: Any) -> None:
        name, module = self.pop(), self.pop()
        self.stack.append(self.found(module, name))

    def persistent(self, argument: Any) -> None:
        held = self.pop() if argument is None else argument
        self.stack.append(_storage(held))

    def take(self, count: int) -> None:
        values = tuple(self.pop() for _ in range(count))[::-1]
        self.stack.append(values)

    def dictionary(self, _argument: Any) -> None:
        values = self.marked()
        self.stack.append({})
        self.set_items(values)


_PUSH = frozenset(
    [
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
        "BYTEARRAY8",
        "UNICODE",
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE8",
        "FLOAT",
        "BINFLOAT",
    ]
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": (), "MARK": _MARK}
_HANDLERS: dict[str, Callable[[_Machine, Any], Any]] = {
    "POP": lambda m, _: m.stack.pop(),
    "POP_MARK": lambda m, _: m.marked(),
    "DUP": lambda m, _: m.stack.append(m.stack[-1]),
    "EMPTY_LIST": lambda m, _: m.stack.append([]),
    "EMPTY_DICT": lambda m, _: m.stack.append({}),
    "EMPTY_SET": lambda m, _: m.stack.append([]),
    "LIST": lambda m, _: m.stack.append(m.marked()),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.marked())),
    "TUPLE1": lambda m, _: m.take(1),
    "TUPLE2": lambda m, _: m.take(2),
    "TUPLE3": lambda m, _: m.take(3),
    "DICT": _Machine.dictionary,
    "FROZENSET": lambda m, _: m.stack.append(m.marked()),
    "APPEND": lambda m, _: m.extend([m.pop()]),
    "APPENDS": lambda m, _: m.extend(m.marked()),
    "ADDITEMS": lambda m, _: m.extend(m.marked()),
    "SETITEM": lambda m, _: m.set_items([m.pop(), m.pop()][::-1]),
    "SETITEMS": lambda m, _: m.set_items(m.marked()),
    "PUT": _Machine.put,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "MEMOIZE": _Machine.put,
    "GET": _Machine.get,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "GLOBAL": _Machine.global_,
    "STACK_GLOBAL": _Machine.stack_global,
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
    "NEWOBJ": _Machine.new,
    "NEWOBJ_EX": _Machine.new_with_keywords,
    "INST": _Machine.instance,
    "OBJ": _Machine.obj,
    "PERSID": _Machine.persistent,
    "BINPERSID": _Machine.persistent,
}


def _key(value: Any, depth: int = _DEPTH) -> Hashable:
    """Return a value that can stand as a key of a dict; what cannot becomes a nameless `Obj`."""
    if value is None or isinstance(value, bool | int | float | str | bytes | Obj):
        return value
    if isinstance(value, tuple) and depth and not isinstance(value, Tensor):
        return tuple(_key(part, depth - 1) for part in value)
    return Obj(None)


def _storage(held: Any) -> Any:
    """Return the storage of a persistent id of torch: ("storage", type, key, location, count)."""
    if isinstance(held, tuple) and len(held) >= 5 and held[0] == "storage" and isinstance(held[1], Global):
        count = held[4] if isinstance(held[4], int) else 0
        return Storage(_STORAGES.get(held[1].name, "U8"), str(held[2]), count)
    return Obj(None, (held,))


def _called(what: Any, arguments: tuple[Any, ...]) -> Any:
    """Return what a call means where that is known and plain, else the call itself, uncalled."""
    if not isinstance(what, Global):
        return Obj(what, arguments)
    if what.name in ("_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_tensor", "_rebuild_qtensor"):
        return _tensor(arguments)
    if what.name in ("_rebuild_parameter", "_rebuild_parameter_with_state") and arguments:
        return arguments[0]
    if what.name == "_rebuild_from_type_v2" and len(arguments) >= 3 and isinstance(arguments[2], tuple):
        return _called(arguments[0], arguments[2])
    if what.module == "collections" and what.name in ("OrderedDict", "defaultdict", "Counter"):
        return _dictionary(arguments)
    if what == Global("torch", "Size"):
        return tuple(arguments[0]) if arguments and isinstance(arguments[0], list | tuple) else ()
    if what == Global("_codecs", "encode") and arguments and isinstance(arguments[0], str):
        return arguments[0].encode("latin-1", "replace")
    if what.name == "bytes" and what.module.endswith(("builtins", "__builtin__")) and not arguments:
        return b""
    return Obj(what, arguments)


def _dictionary(arguments: tuple[Any, ...]) -> dict[Any, Any]:
    table = {}
    if arguments and isinstance(arguments[-1], list):
        for pair in arguments[-1]:
            if isinstance(pair, list | tuple) and len(pair) == 2:
                table[_key(pair[0])] = pair[1]
    return table


def _tensor(arguments: tuple[Any, ...]) -> Any:
    storage, offset, shape = (arguments + (None, None, None))[:3]
    sizes = shape if isinstance(shape, tuple) else ()
    if not isinstance(storage, Storage) or not isinstance(offset, int):
        return Obj(None, arguments)
    dtype = storage.dtype
    for argument in arguments[3:]:
        if isinstance(argument, Global) and argument.module == "torch" and argument.name in DTYPES:
            dtype = DTYPES[argument.name]
    return Tensor(dtype, tuple(size for size in sizes if isinstance(size, int)), storage, offset)
