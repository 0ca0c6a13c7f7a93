"""What importing a part of the backend pulls in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("module", "absent"), [
    ("frogtorch", ["torch", "simpy", "networkx", "docker", "matplotlib"]),
    ("frogtorch.effects", ["torch"]),
    ("frogtorch.collectives", ["torch"]),
    ("frogtorch.lanes", ["torch"]),
    ("frogtorch.memory.space", ["torch"]),
    ("frogtorch.options", ["torch"]),
    ("frogtorch.telemetry.__main__", ["torch"]),
    ("frogtorch.process_group", ["simpy", "docker", "matplotlib", "emulator", "scenarios"]),
])
def test_importing(module, absent):
    code = f"import sys, {module}; print([name for name in {absent!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.stdout.strip(), run.stderr) == ("[]", "")


def test_registering_twice_is_once():
    code = ("import sys, torch.distributed as dist, frogtorch; frogtorch.register(); frogtorch.register();"
            "print(dist.Backend.backend_list.count('frogtorch'), 'frogtorch.process_group' in sys.modules)")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.stdout.strip(), run.stderr) == ("1 False", "")


@pytest.mark.parametrize("command", [["-m", "frogtorch"], ["-c", "import sys; from frogtorch.__main__ import main; "
                                                                "sys.exit(main())"]])
def test_an_interrupt_while_the_command_line_is_imported_is_no_traceback(tmp_path, command):
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios/__init__.py").touch()
    (tmp_path / "scenarios/cli.py").write_text("raise KeyboardInterrupt\n")
    run = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False,
                         env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert (run.returncode, run.stdout) == (130, "")
    assert run.stderr == "frogtorch: interrupted; `frogtorch down` removes what a run may have left\n"
