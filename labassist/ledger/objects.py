"""The object store: files named by the SHA-256 of their content, written once and never changed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from labassist.errors import LedgerError
from labassist.ledger import canonical
from labassist.record.durable import sync_folder

_NAME = re.compile(r"[0-9a-f]{64}")
_BLOCK = 1 << 20


class Objects:
    """The content-addressed files of `folder` (`ledger/objects`), which is made at the first `put`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, sha: str) -> Path:
        """Return where the object lies or would lie. Raises LedgerError on what is no SHA-256."""
        if not _NAME.fullmatch(sha):
            raise LedgerError(f"{sha!r} is not the name of an object (64 hex digits)", where=str(self.folder))
        return self.folder / sha

    def has(self, sha: str) -> bool:
        """Say whether the object is there (not whether it is whole: `get` does); what is no SHA-256 names none."""
        return bool(_NAME.fullmatch(sha)) and self.path(sha).is_file()

    def put(self, data: bytes) -> str:
        """Store `data` and return its SHA-256. Storing it again changes nothing."""
        sha = hashlib.sha256(data).hexdigest()
        try:
            if self.has(sha) and self.path(sha).read_bytes() == data:
                return sha
        except OSError as error:
            raise LedgerError(
                f"object {sha} cannot be read: {error.strerror}", where=str(self.folder)
            ) from error
        return self._store([data])

    def put_json(self, obj: Any) -> str:
        """Store `obj` as canonical JSON and return the SHA-256 of those bytes."""
        return self.put(canonical.dumps(obj))

    def put_file(self, path: Path) -> str:
        """Store the content of a file, a block at a time, and return its SHA-256."""
        try:
            with path.open("rb") as source:
                return self._store(iter(lambda: source.read(_BLOCK), b""))
        except OSError as error:
            raise LedgerError(f"cannot be read: {error.strerror}", where=str(path)) from error

    def get(self, sha: str) -> bytes:
        """Return an object's content. Raises LedgerError when it is missing or not what its name says."""
        path = self.path(sha)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise LedgerError(
                f"object {sha} cannot be read: {error.strerror}",
                where=str(path),
                mend="see `labassist audit`",
            ) from error
        if hashlib.sha256(data).hexdigest() != sha:
            raise LedgerError(
                f"object {sha} is damaged: its content has another hash",
                where=str(path),
                mend="restore the file from a copy of this ledger",
            )
        return data

    def get_json(self, sha: str) -> Any:
        """Return what `put_json` stored. Raises LedgerError as `get`, and on an object that is not JSON."""
        try:
            return json.loads(self.get(sha))
        except ValueError as error:
            raise LedgerError(f"object {sha} is not JSON", where=str(self.path(sha))) from error

    def __iter__(self) -> Iterator[str]:
        """Yield the names of all objects, sorted."""
        if self.folder.is_dir():
            yield from sorted(path.name for path in self.folder.iterdir() if _NAME.fullmatch(path.name))

    def _store(self, blocks: Iterable[bytes]) -> str:
        """Write blocks to a temporary file, then give it its name: there is never half an object."""
        temporary = self.folder / f".tmp-{os.getpid()}-{secrets.token_hex(4)}"
        hasher = hashlib.sha256()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with temporary.open("xb") as file:
                for block in blocks:
                    hasher.update(block)
                    file.write(block)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o444)
            sha = hasher.hexdigest()
            temporary.replace(self.folder / sha)
            sync_folder(self.folder)
        except OSError as error:
            raise LedgerError(
                f"an object cannot be written: {error.strerror}",
                where=str(self.folder),
                mend="free some space, or make the ledger writable",
            ) from error
        finally:
            if temporary.exists():
                temporary.unlink()
        return sha
