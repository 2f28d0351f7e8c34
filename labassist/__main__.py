"""`python -m labassist` is the command `labassist`."""

from __future__ import annotations

import sys

from labassist.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
