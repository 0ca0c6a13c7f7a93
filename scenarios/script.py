"""A training script of the user's, unchanged, in place of a workload: which, and that it is still the same.

What "unchanged" means: the script runs whole, once for each arm and world, in a fresh process a rank, with the
environment that torchrun gives it (RANK, WORLD_SIZE, LOCAL_RANK, ...). One call of it is answered by the testbed, by
``torch.distributed.init_process_group`` as the script finds it: the arm's backend takes the place of Gloo, and ranks
meet through a file. A step ends with the first optimiser's ``step()``. A held-out loss is what the script leaves in a
global variable ``held_out_loss``, or prints in a line such as ``held-out loss: 0.4940``. Imports no torch.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from scenarios import records
from scenarios.arms import ARMS
from scenarios.scenario import Scenario, load

__all__ = ["Script", "as_predicted", "loss_in", "read", "scripted"]

FILE = "script.json"
"""In the run directory: which script is run."""

_LOSS = re.compile(r"held.?out.?loss\W{1,3}([-+]?[0-9.]+(?:e[-+]?[0-9]+)?|nan|inf)", re.IGNORECASE)


@dataclass(frozen=True)
class Script:
    """A script and what it is called with."""

    path: str
    """Absolute."""
    arguments: tuple[str, ...]
    sha256: str

    def write(self, directory: Path) -> None:
        """Keep it with a run, and what the script is now."""
        (directory / FILE).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        (directory / "script.py").write_bytes(Path(self.path).read_bytes())

    def check(self) -> None:
        """Raise ValueError if the script is another than when the run was predicted."""
        if not Path(self.path).is_file() or records.sha256(Path(self.path)) != self.sha256:
            raise ValueError(f"{self.path} is not what it was when this run was predicted (script.py in the run "
                             "directory is its copy): predict again")


def read(directory: Path) -> Script | None:
    """The script of a run, if it has one. Raises RecordError."""
    file = directory / FILE
    if not file.exists():
        return None
    return records.read(file, Script)


def as_predicted(directory: Path) -> Scenario:
    """The scenario of a run as it was predicted: with its script, be that still there or not, in the workload's place.

    Raises ScenarioError or TopologyError, RecordError for a broken script.json, ValueError for what is no run.
    """
    if not (directory / "scenario.yaml").exists():
        raise ValueError(f"{directory} is no run directory, as it has no scenario.yaml: give one that `frogtorch "
                         "predict` or `frogtorch compare` wrote")
    scenario = load(directory / "scenario.yaml", directory / "topology.yaml")
    script = read(directory)
    if script is None or scenario.training is None:
        return scenario
    return replace(scenario, training=replace(scenario.training, script=script.path))


def scripted(scenario: Scenario, path: Path, arguments: tuple[str, ...] = ()) -> tuple[Scenario, Script]:
    """Have a script in place of the scenario's workload.

    Raises ValueError for a script that is no file, a scenario without training, with arms that are comm hooks (only the
    script could register them), with stragglers or sped up (what of a step is computing is not known, so it can neither
    be made slow nor left as it is).
    """
    if not path.is_file():
        raise ValueError(f"--script: there is no file {path}")
    if scenario.training is None:
        raise ValueError(f"{scenario.file}: --script takes the place of a training's workload, and there is none; add "
                         "training: {steps: 2, warmup: 1}, of which a script minds the warm-up alone")
    if hooks := [arm for arm in scenario.arms if ARMS[arm].only_trains]:
        raise ValueError(f"{scenario.file}: arm {hooks[0]!r} is a comm hook, and a script registers its own; leave it "
                         f"out, or have the script do it")
    if scenario.training.stragglers:
        raise ValueError(f"{scenario.file}: stragglers are slow at what a step computes, and of a script's step nobody "
                         "knows what that is; leave stragglers out")
    if fast := [world for world, k in scenario.speedups.items() if k != 1]:
        raise ValueError(f"{scenario.file}: W = {fast[0]} is sped up, and of a script's step nobody knows how much is "
                         f"computing, which is not; write speedup: 1")
    script = Script(str(path.resolve()), arguments, records.sha256(path))
    return replace(scenario, training=replace(scenario.training, script=script.path)), script


def loss_in(printed: str) -> float | None:
    """The last held-out loss that a script has printed."""
    found = _LOSS.findall(printed)
    return float(found[-1]) if found else None
