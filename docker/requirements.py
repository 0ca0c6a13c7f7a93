"""Prints what the image's Python needs, one requirement a line, from pyproject.toml: it is said there alone."""

import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
print(*project["dependencies"], *project["optional-dependencies"]["testbed"], sep="\n")
