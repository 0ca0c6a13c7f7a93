"""What importing a part of the backend pulls in."""

import subprocess
import sys

import pytest


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
