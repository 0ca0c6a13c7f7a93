"""Which code is this? An image holds a copy of it, which may be older than the checkout that directs a run."""

from __future__ import annotations

import hashlib

from emulator.links.namespace import ROOT

PACKAGES = ("frogtorch", "emulator", "scenarios")


def sha256() -> str:
    """SHA-256 over the module files of all packages, in hex."""
    digest = hashlib.sha256()
    for file in sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        digest.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    print(sha256())
