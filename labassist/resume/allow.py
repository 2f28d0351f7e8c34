"""Which names a checkpoint's pickle may import: the exact ones that torch and numpy need, and known classes.

Modules are not enough: torch and numpy hold functions that run commands or load other pickles, so their
names are listed one by one.
"""

from __future__ import annotations

import re
from typing import Literal

from labassist.resume.pickled import DTYPES, Global

_BUILTINS = {
    "set",
    "frozenset",
    "dict",
    "list",
    "tuple",
    "bytearray",
    "bytes",
    "complex",
    "slice",
    "range",
    "int",
    "float",
    "str",
    "bool",
    "object",
}
_EXACT = {
    "collections": {"OrderedDict", "defaultdict", "Counter", "deque"},
    "_codecs": {"encode"},
    "builtins": _BUILTINS,
    "__builtin__": _BUILTINS,
    "copyreg": {"_reconstructor"},
    "copy_reg": {"_reconstructor"},
    "datetime": {"datetime", "date", "time", "timedelta", "timezone"},
    "pathlib": {"PosixPath", "WindowsPath", "PurePosixPath", "Path"},
    "pathlib._local": {"PosixPath", "WindowsPath", "PurePosixPath", "Path"},
    "uuid": {"UUID", "SafeUUID"},
    "argparse": {"Namespace"},
    "types": {"SimpleNamespace"},
    "torch": {"Size", "device", "dtype", "Tensor", "Generator"} | set(DTYPES),
    "torch._utils": {
        "_rebuild_tensor",
        "_rebuild_tensor_v2",
        "_rebuild_tensor_v3",
        "_rebuild_parameter",
        "_rebuild_parameter_with_state",
        "_rebuild_qtensor",
        "_rebuild_sparse_tensor",
        "_rebuild_meta_tensor_no_storage",
        "_rebuild_device_tensor_from_numpy",
    },
    "torch._tensor": {"_rebuild_from_type_v2"},
    "torch.nn.parameter": {"Parameter", "Buffer"},
    "torch.serialization": {"_get_layout"},
    "deepspeed.utils.tensor_fragment": {"fragment_address"},
    "torch.storage": {"UntypedStorage", "TypedStorage"},
    "numpy": {"ndarray", "dtype", "bool_"},
}
_STORAGE = re.compile(r"torch(\.cuda|\.storage)?\.[A-Z][A-Za-z0-9]*Storage")
_NUMPY = re.compile(
    r"numpy\.(_core|core)\.(multiarray\.(_reconstruct|scalar)|numeric\._frombuffer)"
    r"|numpy\.dtypes\.[A-Z][A-Za-z0-9]*DType"
    r"|numpy\.random\._pickle\.__[a-z_]+_ctor|numpy\.random\.[a-z_0-9]+\.[A-Z][A-Za-z0-9]*"
    r"|numpy\.(float|int|uint|complex)[0-9]+"
)
_FRAMEWORKS = (
    "accelerate",
    "composer",
    "datasets",
    "deepspeed",
    "labassist",
    "lightning",
    "lightning_fabric",
    "lightning_utilities",
    "omegaconf",
    "peft",
    "pytorch_lightning",
    "torch",
    "torchdata",
    "torchmetrics",
    "torchtitan",
    "torchtune",
    "transformers",
    "trl",
    "typing",
)
_HOSTILE_MODULES = frozenset(
    [
        "os",
        "posix",
        "nt",
        "subprocess",
        "sys",
        "shutil",
        "socket",
        "ctypes",
        "importlib",
        "runpy",
        "pty",
        "commands",
        "code",
        "codeop",
        "pickle",
        "_pickle",
        "cPickle",
        "marshal",
        "webbrowser",
        "urllib",
        "http",
        "requests",
        "asyncio",
        "multiprocessing",
        "threading",
        "signal",
        "tempfile",
        "operator",
        "functools",
        "timeit",
        "trace",
        "pdb",
        "bdb",
        "cProfile",
        "profile",
        "pip",
        "imp",
        "zipimport",
        "io",
        "_io",
        "inspect",
        "platform",
        "pydoc",
        "site",
        "venv",
        "ensurepip",
        "smtplib",
        "ftplib",
        "telnetlib",
        "xmlrpc",
        "copyreg",
        "sqlite3",
        "glob",
        "fileinput",
    ]
)

_HOSTILE_PARTS = (
    "torch.hub",
    "torch.jit",
    "torch.package",
    "torch.utils.cpp_extension",
    "torch.utils.collect_env",
    "numpy.distutils",
    "numpy.f2py",
    "numpy.testing",
    "joblib",
    "dill",
    "cloudpickle",
)
"""Modules that load other pickles, build code, or run commands."""
_HOSTILE_NAMES = frozenset(
    [
        "load",
        "loads",
        "load_url",
        "load_state_dict_from_url",
        "unpickle",
        "read_pickle",
        "run",
        "system",
        "popen",
    ]
    + [
        "eval",
        "exec",
        "execfile",
        "compile",
        "open",
        "getattr",
        "__import__",
        "import_module",
        "load_library",
    ]
)
"""Functions that do so wherever they are: what is foreign and has such a name would run code."""

Trust = Literal["known", "foreign", "hostile"]


def trust(name: Global) -> Trust:
    """Say whether a name is one that checkpoints need, one that could do harm, or one nobody knows.

    A class of a known training framework counts as known: its instances are settings and enumerations.
    """
    whole = str(name)
    if name.name in _EXACT.get(name.module, ()) or _STORAGE.fullmatch(whole) or _NUMPY.fullmatch(whole):
        return "known"
    top = name.module.partition(".")[0]
    if name.module in ("builtins", "__builtin__") or top in _HOSTILE_MODULES:
        return "hostile"
    if any(name.module == part or name.module.startswith(f"{part}.") for part in _HOSTILE_PARTS):
        return "hostile"
    if name.name.rpartition(".")[2] in _HOSTILE_NAMES:
        return "hostile"
    last = name.name.lstrip("_")
    if top in _FRAMEWORKS and last[:1].isupper() and "." not in name.name:
        return "known"
    return "foreign"
