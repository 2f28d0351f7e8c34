"""Read a file of `torch.save` without torch: the zip archive, the older stream of pickles, a bare pickle.

Only the pickle is read; of the tensors' bytes only those that are asked for. Torch never compresses its
archives, so a compressed member is refused rather than unpacked.
"""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from labassist.resume import safepickle
from labassist.resume.pickled import SIZES, Global, Obj, Storage, Tensor
from labassist.resume.safepickle import BadPickle

MAX_PICKLE_BYTES = 64 << 20
"""A larger pickle (without its tensors) is refused: it would not fit the memory promised."""

_LEGACY_MAGIC = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
_CHUNK = 1 << 20
_FORMATS = {"F64": "d", "F32": "f", "F16": "e", "I64": "q", "I32": "i", "I16": "h", "I8": "b", "U8": "B"}


class Torn(Exception):
    """A file is cut, altered or not what it should be. `member` names the part where one can be told."""

    def __init__(self, what: str, *, member: str = "", crc: bool = False, names: Any = ()) -> None:
        super().__init__(what)
        self.member = member
        self.crc = crc
        self.globals: set[Global] = set(names)


class _Section(io.RawIOBase):
    """A part of a file as a file of its own."""

    def __init__(self, path: Path, begin: int, size: int) -> None:
        super().__init__()
        self._file = path.open("rb")
        self._begin, self._size, self._at = begin, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._size - self._at))
        self._file.seek(self._begin + self._at)
        data = self._file.read(count)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


class _Limited:
    """A file for the decoder of pickles, which refuses to read a huge string into memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        if size > MAX_PICKLE_BYTES:
            raise ValueError("a string in it is too large to be read")
        return self._file.read(size)

    def readline(self) -> bytes:
        return self._file.readline(MAX_PICKLE_BYTES)

    def tell(self) -> int:
        return self._file.tell()


@dataclass(frozen=True)
class Place:
    """A whole file, or `size` bytes of it from `begin` on."""

    path: Path
    begin: int = 0
    size: int | None = None

    def open(self) -> BinaryIO:
        """Open it for reading. Raises OSError."""
        if self.size is None:
            return self.path.open("rb")
        return io.BufferedReader(_Section(self.path, self.begin, self.size))

    def length(self) -> int:
        """Return its size in bytes."""
        return self.path.stat().st_size if self.size is None else self.size


@dataclass
class Loaded:
    """What a file holds. Tensors are descriptions; `data` and `numbers` fetch bytes of them."""

    place: Place
    value: Any
    globals: set[Global]
    kind: str
    """`zip`, `legacy` or `pickle`."""
    root: str = ""
    """First folder inside the zip: the name of the file as it was saved, without its suffix."""
    storages: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Storage key -> first byte in the file and size, for the legacy kind."""

    def data(self, tensor: Tensor) -> bytes:
        """Return the bytes of a contiguous tensor. Raises Torn."""
        if tensor.storage is None:
            return b""
        begin = tensor.offset * SIZES.get(tensor.dtype, 1)
        try:
            if self.kind == "zip":
                with self.place.open() as file, zipfile.ZipFile(file) as archive:
                    return _part(archive, self._member(tensor.storage.key), begin, tensor.bytes)
            first, _size = self.storages[tensor.storage.key]
            with self.place.open() as file:
                file.seek(first + begin)
                return file.read(tensor.bytes)
        except (OSError, KeyError, zipfile.BadZipFile, NotImplementedError) as error:
            raise Torn(f"a tensor cannot be read: {error}") from error

    def numbers(self, tensors: list[Tensor]) -> list[float]:
        """Return the value of each one-element tensor; those of other sizes or kinds are left out."""
        found = []
        wanted = [tensor for tensor in tensors if tensor.numel == 1 and tensor.storage is not None]
        try:
            if self.kind != "zip":
                raws = [self.data(tensor) for tensor in wanted]
            else:
                with self.place.open() as file, zipfile.ZipFile(file) as archive:
                    raws = [self._element(archive, tensor) for tensor in wanted]
        except (OSError, KeyError, zipfile.BadZipFile, NotImplementedError) as error:
            raise Torn(f"a tensor cannot be read: {error}") from error
        for tensor, raw in zip(wanted, raws, strict=True):
            value = number(raw, tensor.dtype)
            if value is not None:
                found.append(value)
        return found

    def _element(self, archive: zipfile.ZipFile, tensor: Tensor) -> bytes:
        assert tensor.storage is not None
        size = SIZES.get(tensor.dtype, 1)
        return _part(archive, self._member(tensor.storage.key), tensor.offset * size, size)

    def digest(self, value: Any) -> str:
        """Return a digest of a structure with the bytes of its tensors: equal exactly for equal content."""
        running = hashlib.sha256()
        self._feed(value, running)
        return running.hexdigest()[:16]

    def _feed(self, value: Any, running: hashlib._Hash) -> None:
        if isinstance(value, Tensor):
            running.update(f"tensor {value.dtype} {value.shape} ".encode() + self.data(value))
        elif isinstance(value, dict):
            running.update(b"{")
            for key, item in value.items():
                running.update(repr(key).encode())
                self._feed(item, running)
        elif isinstance(value, list | tuple) and not isinstance(value, Storage | Global):
            running.update(b"[")
            for item in value:
                self._feed(item, running)
        elif isinstance(value, Obj):
            running.update(str(value.what).encode())
            for item in (value.args, value.state, value.items, value.pairs):
                self._feed(item, running)
        else:
            running.update(repr(value).encode())
        running.update(b";")

    def _member(self, key: str) -> str:
        return f"{self.root}/data/{key}" if self.root else f"data/{key}"


def number(raw: bytes, dtype: str) -> float | None:
    """Return one element as a number, None for a data type that has no plain one."""
    if dtype == "BF16":
        raw, dtype = b"\0\0" + raw, "F32"
    if dtype not in _FORMATS or len(raw) != SIZES[dtype]:
        return None
    return float(struct.unpack("<" + _FORMATS[dtype], raw)[0])


def read(path: Path, *, verify: bool = True, begin: int = 0, size: int | None = None) -> Loaded:
    """Return what a file of torch.save, or a bare pickle, holds, without running anything of it.

    With `verify` every member of a zip is read and compared with its CRC-32. `begin` and `size` name a part
    of the file. Raises Torn for a file that is cut, altered, too large to be read safely, or none of these
    kinds; OSError where it cannot be opened.
    """
    place = Place(path, begin, size)
    with place.open() as file:
        head = file.read(16)
        if not head:
            raise Torn("the file is empty")
        if head.startswith(b"PK"):
            return _read_zip(place, verify)
        file.seek(0)
        if head[2:].startswith(_LEGACY_MAGIC) or head.startswith(_LEGACY_MAGIC):
            return _read_legacy(place, file)
        if place.length() > MAX_PICKLE_BYTES:
            raise Torn("the pickle is too large to be read without loading it")
        names: set[Global] = set()
        data = file.read()
    stream = io.BytesIO(data)
    value = _unpickle(stream, names)
    if stream.tell() != len(data):
        raise Torn("bytes follow the end of the pickle", names=names)
    return Loaded(place, value, names, "pickle")


def _unpickle(file: Any, names: set[Global]) -> Any:
    try:
        return safepickle.load(file, names)
    except BadPickle as error:
        raise Torn(str(error), names=error.globals) from error


def _read_zip(place: Place, verify: bool) -> Loaded:
    names: set[Global] = set()
    try:
        with place.open() as file, zipfile.ZipFile(file) as archive:
            members = {info.filename: info for info in archive.infolist()}
            pickled = [name for name in members if name == "data.pkl" or name.endswith("/data.pkl")]
            if len(pickled) != 1:
                raise Torn("the archive has no data.pkl")
            for info in members.values():
                if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
                    raise Torn("a member is compressed, which torch never does", member=info.filename)
            if members[pickled[0]].file_size > MAX_PICKLE_BYTES:
                raise Torn("its data.pkl is too large to be read")
            root = pickled[0].rpartition("/")[0]
            stream = io.BytesIO(_whole(archive, pickled[0]))
            value = _unpickle(stream, names)
            if verify:
                for name in members:
                    _whole(archive, name, keep=False)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, struct.error, ValueError, OSError) as error:
        raise Torn(f"not a whole zip archive: {error}", names=names) from error
    loaded = Loaded(place, value, names, "zip", root)
    for storage in storages(value):
        member = members.get(loaded._member(storage.key))
        if member is None:
            raise Torn("a tensor's bytes are missing", member=loaded._member(storage.key), names=names)
        if member.file_size < storage.elements * SIZES[storage.dtype]:
            raise Torn("a tensor's bytes are cut", member=member.filename, names=names)
    return loaded


def _whole(archive: zipfile.ZipFile, name: str, *, keep: bool = True) -> bytes:
    """Read a member to its end, which compares its CRC-32; return it where it is to be kept."""
    kept = []
    try:
        with archive.open(name) as file:
            while chunk := file.read(_CHUNK):
                if keep:
                    kept.append(chunk)
    except zipfile.BadZipFile as error:
        raise Torn(f"altered: {error}", member=name, crc=True) from error
    return b"".join(kept)


def _part(archive: zipfile.ZipFile, name: str, begin: int, count: int) -> bytes:
    with archive.open(name) as file:
        if begin:
            file.seek(begin)
        return file.read(count)


def _read_legacy(place: Place, file: BinaryIO) -> Loaded:
    """Read magic, version, system, the value, the storage keys, then each storage: count and bytes."""
    names: set[Global] = set()
    limited = _Limited(file)
    for _part_of_head in range(3):
        _unpickle(limited, names)
    value = _unpickle(limited, names)
    keys = _unpickle(limited, names)
    known = {storage.key: storage for storage in storages(value)}
    places, at = {}, file.tell()
    for key in keys if isinstance(keys, list) else []:
        file.seek(at)
        count = int.from_bytes(file.read(8), "little")
        width = SIZES[known[key].dtype] if key in known else 1
        places[str(key)] = (at + 8, count * width)
        at += 8 + count * width
    if at != place.length():
        raise Torn(f"the file has {place.length()} bytes where its storages need {at}", names=names)
    return Loaded(place, value, names, "legacy", storages=places)


def storages(value: Any) -> list[Storage]:
    """Return every storage that a value's tensors use, each once."""
    found: dict[str, Storage] = {}
    pending, seen = [value], set()
    while pending:
        item = pending.pop()
        if isinstance(item, Tensor):
            if item.storage:
                earlier = found.get(item.storage.key)
                if earlier is None or earlier.elements < item.storage.elements:
                    found[item.storage.key] = item.storage
            continue
        if not isinstance(item, dict | list | tuple | Obj) or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Obj):
            pending += [item.args, item.state, item.items, item.pairs]
        else:
            pending += item.values() if isinstance(item, dict) else item
    return list(found.values())
