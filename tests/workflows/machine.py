"""A made-up GPU machine: a runner's folders, a driver that lists GPUs, and a torch whose `cuda:N` is the CPU."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.workflows.reader import GITHUB, ROOT, Step

UUIDS = ["GPU-aaaaaaaa", "GPU-bbbbbbbb"]

SMI = """#!/bin/sh
case "$1" in
--query-gpu=*) printf '%s' '{rows}' ;;
--query-compute-apps=*) ;;
*) echo NVIDIA-SMI ;;
esac
"""

# In the place of torch's own module while it is imported; `import torch` then gives the real one, changed.
TORCH = """
import os, sys, time
here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [place for place in sys.path if os.path.abspath(place or '.') != here]
del sys.modules["torch"]
import torch
fault = os.environ.get("MADE_UP_FAULT", "")
if fault == "no CUDA build":
    torch.version.cuda = None
else:
    torch.version.cuda = "13.0"
    torch.cuda.is_available = lambda: fault != "no driver"
visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
torch.cuda.device_count = lambda: time.sleep(3600) if fault == "hangs" else len(visible) - (fault == "lost GPU")
torch.cuda.get_device_name = lambda number: "made up " + visible[number]
arange, to = torch.arange, torch.Tensor.to

def allocate(count, *, device=None, **others):
    if device is not None and fault == "no memory":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1024 MiB")
    found = arange(count, **others)
    if device is not None and fault == "bad memory":
        found[count // 2] ^= 1
    return found

def move(self, where, *others):
    moved = to(self, *others) if others else self
    if fault == "bad product" and others:
        moved = moved + 1
    if fault == "bad copy" and not others:
        moved = moved.clone()
        moved[0] += 1
    return moved

torch.arange, torch.Tensor.to = allocate, move
sys.modules["torch"] = torch
"""

# Options that the stage passes; what this checkout's plugin does not know yet is taken and left alone.
CONFTEST = """
def pytest_addoption(parser):
    for name in ("gpu-policy", "waivers", "golden", "golden-force", "report"):
        try:
            parser.addoption(f"--specalign-{name}")
        except ValueError:
            pass
"""


@dataclasses.dataclass
class Machine:
    """`workspace` is the checkout, `temp` is $RUNNER_TEMP with the run's own folder `name`; both lie in one folder."""

    folder: Path
    name: str = "specalign-gpu"
    workspace: Path = dataclasses.field(init=False)
    temp: Path = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.workspace, self.temp = self.folder / "work space", self.folder / "temp"
        shutil.copytree(GITHUB, self.workspace / ".github", ignore=shutil.ignore_patterns("__pycache__"))
        self.temp.mkdir()
        (self.workspace / "conftest.py").write_text(CONFTEST)
        (self.workspace / "pytest.ini").write_text("[pytest]\n")
        self._tool("python", f'exec "{sys.executable}" "$@"')
        self._tool("pytest", f'exec "{sys.executable}" -m pytest "$@"')
        self._tool("specalign", f'exec "{sys.executable}" -m specalign.cli.main "$@"')
        rows = "".join(f"{i}, {uuid}, 580.65.06, [N/A], 143771, 143162, 9.0, NVIDIA H200\n" for i, uuid in enumerate(UUIDS))
        self._write(self.folder / "bin" / "nvidia-smi", SMI.format(rows=rows))
        (self.folder / "site").mkdir()
        (self.folder / "site" / "torch.py").write_text(TORCH)
        (self.folder / "site" / "pynvml.py").write_text("raise ImportError")

    @property
    def mark(self) -> dict[str, str]:
        """The job's own variable by which its processes are known; no other test's machine has the same."""
        return {"MARK": f"1-1-{self.folder.name}-{os.getpid()}"}

    @property
    def out(self) -> Path:
        return self.temp / self.name / "out"

    def _tool(self, name: str, line: str) -> None:
        self._write(self.temp / self.name / "venv" / "bin" / name, f"#!/bin/sh\n{line}\n")

    @staticmethod
    def _write(file: Path, text: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)

    def environment(self) -> dict[str, str]:
        """What a step finds: nothing of the session that runs these tests but PATH and HOME."""
        kept = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG", "TMPDIR")}
        return kept | {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(self.folder / "site"), str(ROOT / "impl"), str(ROOT)]),
            "SPECALIGN_LOCK_DIR": str(self.folder / "locks"),
            "CI": "true",
            "GPU_HEALTH_MIB": "4",
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_WORKSPACE": str(self.workspace),
            "GITHUB_ACTION_PATH": str(self.workspace / ".github" / "actions" / "setup-gpu"),
            "GITHUB_OUTPUT": str(self.folder / "output"),
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary"),
        }

    def start(self, step: Step, job_env: dict[str, str] | None = None, **env: str) -> subprocess.Popen[str]:
        """The block of a step as a runner starts it. Each value of its `env` that is an expression must be given."""
        own = step.data.get("env", {})
        open_names = {name for name, value in own.items() if "${{" in value}
        missing = open_names - set(env)
        assert not missing, f"{step.title}: give {missing}"
        script = self.folder / "block.sh"
        script.write_text(str(step.script))
        return subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=self.workspace,
            env=self.environment() | {name: own[name] for name in set(own) - open_names} | (job_env or {}) | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, step: Step, job_env: dict[str, str] | None = None, **env: str) -> tuple[int, str]:
        """Exit code and output."""
        process = self.start(step, job_env, **env)
        output, _ = process.communicate(timeout=300)
        return process.returncode, output
