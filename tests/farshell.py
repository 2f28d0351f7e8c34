"""Another machine that is a shell of this one: what is run over ssh runs here, and may be told to be elsewhere."""

from __future__ import annotations

from pathlib import Path

SCRIPT = """#!/bin/sh
while [ $# -gt 2 ]; do shift; done
case "$1" in dead*) echo "ssh: connect to host $1: Connection timed out" >&2; exit 255;; esac
cd / || exit 1
case "$1 $2" in far*boot_id*) ;; *) exec sh -c "$2";; esac
told=$(sh -c "$2") || exit
echo "$told" | sed 's/^boot .*/boot another/; s/ - overlay / - ext4 /'
"""


def env(folder: Path) -> dict[str, str]:
    """Return the environment for `far…:`, on another machine, `near…:`, on this one, and `dead…:`, which is silent."""
    script = folder / "ssh"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    return {"LABASSIST_SSH": str(script)}
