"""What holds for every workflow and example: pinned actions, least rights, no text of others in a shell, no fork on our machines."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.workflows.reader import ACTIONS, GITHUB, ROOT, WORKFLOWS, Step, all_steps, evaluate, jobs, load

STEPS = all_steps()
SHELL = [step for step in STEPS if step.script is not None]
STAGE = GITHUB / "workflows" / "_gpu-stage.yml"

# The commits that these actions are taken at; a new one is added here by whoever looked at it.
PINNED = {
    "actions/checkout": "3d3c42e5aac5ba805825da76410c181273ba90b1",
    "actions/setup-python": "ece7cb06caefa5fff74198d8649806c4678c61a1",
    "actions/upload-artifact": "043fb46d1a93c77aae656e7c1c64a875d1fc6a0a",
    "actions/download-artifact": "3e5f45b2cfb9172054b4087a40e8e0b5a5461e7c",
    "peter-evans/create-pull-request": "5f6978faf089d4d20b00c7766989d076bb2fc7f1",
    "pypa/gh-action-pypi-publish": "dc37677b2e1c63e2034f94d8a5b11f265b73ba33",
}

# The rights that a job has beyond reading the repository, each for one reason.
RIGHTS = {
    ("refresh-goldens.yml", "propose"): {"contents": "write", "pull-requests": "write"},
    ("release.yml", "publish"): {"id-token": "write"},
}


def _title(value: object) -> str:
    return value.title if isinstance(value, Step) else value.name if isinstance(value, Path) else str(value)


@pytest.mark.parametrize("step", [step for step in STEPS if "PROGRAM" in step.data.get("env", {})], ids=_title)
def test_a_program_in_a_workflow_is_python(step: Step) -> None:
    assert "torch.cuda.device_count() ==" in step.data["env"]["PROGRAM"]
    compile(step.data["env"]["PROGRAM"], step.title, "exec")


def test_there_is_something_to_look_at() -> None:
    assert {file.name for file in WORKFLOWS} >= {"ci.yml", "gpu.yml", "_gpu-stage.yml", "refresh-goldens.yml", "release.yml"}
    assert len(ACTIONS) == 1
    assert len(SHELL) > 25


@pytest.mark.parametrize("step", SHELL, ids=_title)
def test_a_shell_block_parses_and_has_no_text_of_others_in_it(step: Step, tmp_path: Path) -> None:
    assert step.script is not None
    assert "${{" not in step.script, "pass it through env"
    (tmp_path / "block").write_text(step.script)
    parsed = subprocess.run(["bash", "-n", "block"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (parsed.returncode, parsed.stderr) == (0, "")


@pytest.mark.parametrize(
    "step", [step for step in SHELL if "\n" in step.script.strip() and step.file.name not in ("ci.yml", "fuzz.yml")], ids=_title
)
def test_a_shell_block_of_several_lines_stops_at_the_first_error(step: Step) -> None:
    assert str(step.script).startswith("set -euo pipefail\n")


@pytest.mark.parametrize("step", [step for step in SHELL if not step.job], ids=_title)
def test_a_composite_action_names_its_shell(step: Step) -> None:
    assert step.data["shell"] == "bash"


@pytest.mark.parametrize("step", [step for step in STEPS if step.uses], ids=_title)
def test_an_action_is_pinned_to_the_commit_that_somebody_looked_at(step: Step) -> None:
    uses = str(step.uses)
    if uses.startswith("$/"):  # this repository, at the commit of the workflow
        assert (ROOT / uses[2:] / "action.yml").is_file()
        return
    action, _, commit = uses.partition("@")
    assert commit == PINNED[action]
    assert re.search(rf"{re.escape(uses)} # v\d", step.file.read_text()), "say which version that is"


@pytest.mark.parametrize("step", [step for step in STEPS if str(step.uses).startswith("actions/checkout@")], ids=_title)
def test_a_checkout_keeps_no_token(step: Step) -> None:
    assert step.data["with"]["persist-credentials"] == "false"


@pytest.mark.parametrize("file", WORKFLOWS, ids=_title)
def test_rights_are_given_job_by_job_and_times_are_limited(file: Path) -> None:
    assert load(file)["permissions"] in ({}, ""), "nothing for all jobs"
    assert "pull_request_target" not in load(file)["on"]
    for name, job in jobs(file).items():
        assert job["permissions"] == RIGHTS.get((file.name, name), {"contents": "read"}), name
        assert "uses" in job or "timeout-minutes" in job, name


@pytest.mark.parametrize("file", WORKFLOWS, ids=_title)
def test_names_of_the_runner_are_used_where_github_knows_them(file: Path) -> None:
    """`runner` and `steps` do not exist yet where a job's or a workflow's own `env`, `if` and `runs-on` are read."""
    for name, job in jobs(file).items():
        early = str(
            [load(file).get("env"), job.get("env"), job.get("if"), job.get("runs-on"), job.get("with"), job.get("strategy")]
        )
        assert not re.search(r"\b(runner|steps|env|job)\.", early), name


SAME = {
    "github.repository": "us/it",
    "github.event_name": "pull_request",
    "github.event.pull_request.head.repo.full_name": "us/it",
}
FORK = SAME | {"github.event.pull_request.head.repo.full_name": "them/it"}
GONE = {key: value for key, value in SAME.items() if not key.endswith("full_name")}
LABELED = {"github.event.action": "labeled", "github.event.label.name": "gpu"}
OTHER_LABEL = {"github.event.action": "labeled", "github.event.label.name": "docs"}


def _event(name: str) -> dict[str, str]:
    return {"github.repository": "us/it", "github.event_name": name}


@pytest.mark.parametrize(
    ("names", "runs"),
    [
        (SAME, True),
        (FORK, False),
        (GONE, False),
        (_event("merge_group"), True),
        (_event("schedule"), True),
        (_event("workflow_dispatch"), True),
        (_event("issue_comment"), False),
        (SAME | {"github.event_name": "pull_request_target"}, False),
        (FORK | {"github.event_name": "pull_request_target"}, False),
        (FORK | {"github.event_name": "pull_request_review"}, False),
        ({}, False),
    ],
)
def test_a_gpu_machine_never_gets_the_code_of_a_fork(names: dict[str, str], runs: bool) -> None:
    for file in WORKFLOWS:
        for name, job in jobs(file).items():
            if "self-hosted" in str(job.get("runs-on")) or "inputs." in str(job.get("runs-on")):
                assert bool(evaluate(job["if"], names=LABELED | names)) is runs or _by_push(file, names), f"{file.name}: {name}"


def _by_push(file: Path, names: dict[str, str]) -> bool:
    """The examples run what was pushed to main instead of what waits in a merge queue."""
    return (
        file.parent.name == "github-actions"
        and names == _event("merge_group")
        and load(file)["on"]["push"] == {"branches": ["main"]}
    )


def test_a_push_reaches_our_machines_by_the_merge_queue_only() -> None:
    assert not evaluate(jobs(STAGE)["test"]["if"], names=_event("push"))


def test_which_jobs_those_are() -> None:
    found = {
        (file.name, name)
        for file in WORKFLOWS
        for name, job in jobs(file).items()
        if not str(job.get("runs-on", "ubuntu-")).startswith("ubuntu-")
    }
    assert found >= {("_gpu-stage.yml", "test")}
    assert {name for name, _ in found} == {"_gpu-stage.yml", "single-gpu.yml", "multi-gpu.yml", "sharded.yml"}


@pytest.mark.parametrize(
    ("names", "plan", "gate"),
    [
        (SAME | LABELED, True, True),
        (SAME | OTHER_LABEL, False, False),
        (SAME | {"github.event.action": "synchronize"}, False, False),
        (SAME | {"github.event.action": "synchronize", "github.event.label.name": "gpu"}, False, False),
        (SAME | {"github.event.action": "opened"}, False, False),
        (FORK | LABELED, False, True),
        (FORK | {"github.event.action": "synchronize"}, False, False),
        (_event("merge_group"), True, True),
        (_event("schedule"), True, True),
        (_event("workflow_dispatch"), True, True),
    ],
)
def test_the_label_starts_one_run_and_a_later_commit_none(names: dict[str, str], plan: bool, gate: bool) -> None:
    found = jobs(GITHUB / "workflows" / "gpu.yml")
    assert bool(evaluate(found["plan"]["if"], names=names)) is plan
    assert bool(evaluate(found["gate"]["if"], names=names)) is gate, "the gate looks also where the plan was skipped, and fails"


def test_a_label_cancels_the_run_of_the_label_before_and_no_other() -> None:
    group = load(GITHUB / "workflows" / "gpu.yml")["concurrency"]["group"]
    (expression,) = re.findall(r"github\.ref \}\}-\$\{\{ (.*) \}\}", group)
    assert evaluate(expression, names=SAME | LABELED | {"github.run_id": "7"}) == "label"
    assert evaluate(expression, names=SAME | OTHER_LABEL | {"github.run_id": "7"}) == "7"
    assert evaluate(expression, names=_event("schedule") | {"github.run_id": "7"}) == "7"


def test_every_input_that_a_caller_gives_is_one_and_none_that_is_required_is_missing() -> None:
    inputs = load(STAGE)["on"]["workflow_call"]["inputs"]
    required = {name for name, data in inputs.items() if data.get("required") == "true"}
    callers = [job for file in WORKFLOWS for job in jobs(file).values() if "_gpu-stage" in str(job.get("uses"))]
    assert len(callers) == 2
    for job in callers:
        assert required <= set(job["with"]) <= set(inputs)
        assert job["uses"] == "$/.github/workflows/_gpu-stage.yml"


@pytest.mark.parametrize(
    ("path", "owned"),
    [
        ("tests/gpu/__golden__/test_x.py/test_a.sm90.safetensors", True),
        ("__golden__/a", True),
        ("a/b/c/__golden__/d/e", True),
        ("tests/golden/a", False),
        ("tests/gpu/test_x.py", False),
        (".github/workflows/gpu.yml", True),
        ("examples/.github/x", False),
    ],
)
def test_code_owners_guard_goldens_wherever_they_are(path: str, owned: bool, tmp_path: Path) -> None:
    """A pattern means what it means in a .gitignore, so git itself is asked."""
    lines = [line for line in (GITHUB / "CODEOWNERS").read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"\S+ @[\w-]+/[\w-]+", line) for line in lines)
    (tmp_path / ".gitignore").write_text("\n".join(line.split()[0] for line in lines))
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    asked = subprocess.run(["git", "check-ignore", "-q", "--no-index", path], cwd=tmp_path, check=False)
    assert (asked.returncode == 0) is owned
