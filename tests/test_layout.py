"""What may import what, what the wheel holds, and what the checkout must not shadow."""

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def imported(file: Path) -> set[str]:
    """Absolute names of the modules that a file imports, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return names


def offenders(package: str, forbidden: tuple[str, ...], allowed: tuple[str, ...] = ()) -> list[str]:
    def within(name: str, modules: tuple[str, ...]) -> bool:
        return any(name == module or name.startswith(module + ".") for module in modules)

    files = sorted((ROOT / package).rglob("*.py"))
    assert files, package
    return [f"{file.relative_to(ROOT)} imports {name}" for file in files for name in sorted(imported(file))
            if within(name, forbidden) and not within(name, allowed)]


def test_imports_run_one_way():
    assert offenders("frogtorch", ("emulator", "scenarios", "simpy", "networkx", "docker", "matplotlib")) == []
    assert offenders("emulator", ("scenarios", "torch")) == []
    # Of the backend, the emulator may use the pure part alone.
    assert offenders("emulator", ("frogtorch",), ("frogtorch.effects", "frogtorch.collectives")) == []
    assert offenders("emulator/sim", ("emulator.links", "emulator.hosts")) == []
    assert offenders("frogtorch/collectives", ("torch", "socket", "threading", "time")) == []


def test_the_rule_bites(tmp_path):
    (tmp_path / "wrong.py").write_text("def f():\n    from emulator.links import htb\n    import torch.distributed\n")
    assert imported(tmp_path / "wrong.py") == {"emulator.links", "emulator.links.htb", "torch.distributed"}


@pytest.mark.parametrize(("statement", "absent"), [
    ("import frogtorch", "torch simpy networkx docker matplotlib numpy emulator scenarios"),
    ("import frogtorch.effects, frogtorch.collectives.interest", "torch simpy networkx"),
    ("import emulator.sim", "torch matplotlib emulator.links emulator.hosts"),
])
def test_an_import_pulls_in_no_more_than_it_needs(statement, absent):
    code = f"{statement}; import sys; print([m for m in {absent.split()!r} if m in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == "[]\n"


def test_predict_imports_no_torch(tmp_path):
    arguments = ["predict", str(ROOT / "scenarios/quick.yaml"), "--output", str(tmp_path / "run")]
    code = (f"import sys; from scenarios.cli import main\nstatus = main({arguments!r})\n"
            "sys.exit(f'status {status}' if status else 'torch was imported' if 'torch' in sys.modules else 0)")
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "run" / "predictions.jsonl").stat().st_size > 0


def test_the_docker_folder_does_not_shadow_the_sdk():
    assert not (ROOT / "docker" / "__init__.py").exists()
    code = "import docker; print(docker.DockerClient.__name__)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert printed == "DockerClient\n"


@pytest.mark.slow
def test_the_wheel_holds_the_backend_alone_and_needs_torch_alone(tmp_path):
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
                   check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
        (metadata,) = [archive.read(name).decode() for name in archive.namelist() if name.endswith("METADATA")]
        archive.extractall(tmp_path / "node")
    assert tops == {"frogtorch", "frogtorch-0.1.0.dist-info"}
    assert [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line] == [
        "Requires-Dist: torch>=2.13"]
    # -S: nothing of this environment, as on a node that has no checkout.
    answer = subprocess.run([sys.executable, "-S", "-m", "frogtorch"], cwd=tmp_path / "node", capture_output=True,
                            text=True)
    assert answer.returncode == 2
    assert "pip install -e '.[testbed]'" in answer.stderr
