"""Check a published draft head for every engine, run the same checks as tests, compare two dumps that differ by an off-by-one.

The head is nvidia/gpt-oss-120b-Eagle3-v3. SGLang 0.5.16 adds 1 to its ids, loses the last state and dies at the first request on
5760 features where 8640 are needed; SGLang 0.5.23 serves it. The dumps are those of `two_dumps.py`. Exits 1 if an outcome is not
as promised. Works where the package is installed and in a bare checkout.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HEAD = ROOT / "examples" / "heads" / "nvidia--gpt-oss-120b-Eagle3-v3"
TARGET = ROOT / "examples" / "targets" / "openai--gpt-oss-120b"
OUT = ROOT / "build" / "demo"
OLD, NEW = "sglang==0.5.16", "sglang==0.5.23"
CRASH = "5760 and 8640"
SUITE = "pytest_specalign.suite.pair"
SHOWN_LINES = 8
OFF_BY_ONE = "boundary 1 of side b is boundary 2 of side a"


class DemoError(Exception):
    """An outcome differs from what this demo promises."""


def main() -> int:
    """Run all parts and say where the reports are."""
    OUT.mkdir(parents=True, exist_ok=True)
    try:
        check_all_engines()
        run_suite(NEW, must_pass=True)
        run_suite(OLD, must_pass=False)
        compare_dumps()
    except DemoError as error:
        print(f"\ndemo FAILED: {error}", file=sys.stderr)
        print(f"what was written so far is in {shown(OUT)}", file=sys.stderr)
        return 1
    print(
        f"\nThe reports are in {shown(OUT)}: check.txt, check.json, one JUnit file for each run of the suite, and compare.html."
    )
    return 0


def check_all_engines() -> None:
    """`specalign check` on the pair for every engine, as text and as JSON."""
    title(f"specalign check {shown(HEAD)} {shown(TARGET)}")
    text = specalign("text")
    (OUT / "check.txt").write_text(text, "utf-8")
    raw = specalign("json")
    (OUT / "check.json").write_text(raw, "utf-8")
    print(select(text))
    report = parsed(raw)
    old, new = errors(report, OLD), errors(report, NEW)
    expect(any(CRASH in f["what"] for f in old), f"{OLD} should show the crash `{CRASH}`, its errors are {codes(old)}")
    expect(not new, f"{NEW} should have no error, it has {codes(new)}")
    print(f"=> {OLD} dies at the first request on `{CRASH}`; {NEW} is clean.")


def run_suite(engine: str, *, must_pass: bool) -> None:
    """The suite for one engine, with its JUnit file; it must pass or fail as said, and for the right reason."""
    junit = OUT / f"suite-{engine.replace('==', '-')}.xml"
    junit.unlink(missing_ok=True)
    arguments = [
        *("-p", "specalign", "--pyargs", SUITE, f"--specalign-engine={engine}"),
        *(f"--specalign-draft={shown(HEAD)}", f"--specalign-target={shown(TARGET)}"),
    ]
    title(f"pytest {' '.join(arguments)}")
    quiet = ["-q", "-ra", "--tb=short", "--color=no", "-p", "no:cacheprovider", f"--junit-xml={junit}"]
    done = run([sys.executable, "-m", "pytest", *arguments, *quiet])
    print(done.stdout.rstrip() if must_pass else shortened(done.stdout))
    expect(junit.is_file(), f"the suite wrote no JUnit file for {engine}: {last_lines(done)}")
    wanted = 0 if must_pass else 1
    expect(done.returncode == wanted, f"the suite for {engine} ended with {done.returncode}, not {wanted}: {last_lines(done)}")
    count, failures = read_junit(junit)
    expect(count > 0, f"the suite for {engine} ran no test")
    if not must_pass:
        expect(any(CRASH in text for text in failures), f"no failure of the suite for {engine} shows `{CRASH}`")
    verdict = f"{len(failures)} of {count} fail, as they must" if failures else f"all {count} pass"
    print(f"=> {engine}: {verdict}.")


def compare_dumps() -> None:
    """`specalign compare` on two dumps that must be equal, and on two of which one is off by one: it must say so."""
    right, wrong = OUT / "dumps-right", OUT / "dumps-off-by-one"
    for folder, extra in ((right, ["--right"]), (wrong, [])):
        shutil.rmtree(folder, ignore_errors=True)
        done = run([sys.executable, "examples/two_dumps.py", shown(folder), *extra])
        expect(done.returncode == 0, f"two_dumps.py ended with {done.returncode}: {last_lines(done)}")
    expect(compare(right).returncode == 0, "the two dumps that are equal do not compare equal")
    page = OUT / "compare.html"
    page.unlink(missing_ok=True)
    title(f"specalign compare {shown(wrong / 'train')} {shown(wrong / 'rollout')} --html {shown(page)}")
    done = compare(wrong, "--html", shown(page))
    print(done.stdout.rstrip())
    expect(done.returncode == 1, f"specalign compare ended with {done.returncode}, not 1: {last_lines(done)}")
    expect(OFF_BY_ONE in done.stdout, f"specalign compare did not explain the off-by-one: {last_lines(done)}")
    expect(page.is_file(), "specalign compare wrote no page")
    print(f"=> explained: {OFF_BY_ONE}.")


def compare(folder: Path, *extra: str) -> subprocess.CompletedProcess[str]:
    """`specalign compare` on the two dumps of a folder."""
    dumps = [shown(folder / "train"), shown(folder / "rollout")]
    return run([sys.executable, "-m", "specalign.cli.main", "compare", *dumps, *extra])


def specalign(form: str) -> str:
    """Standard output of `specalign check` in one format; it must find errors, since most engines have some."""
    command = [sys.executable, "-m", "specalign.cli.main", "check", shown(HEAD), shown(TARGET), "--format", form]
    done = run(command)
    expect(done.returncode == 1, f"specalign check ended with {done.returncode}, not 1: {last_lines(done)}")
    return done.stdout


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """A subprocess in the root of the checkout that finds the package installed or not, and no option of the caller's."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("SPECALIGN_", "PYTEST_"))}
    sources = [str(ROOT / "impl"), str(ROOT)]
    env["PYTHONPATH"] = os.pathsep.join([*sources, *filter(None, [env.get("PYTHONPATH")])])
    env["PYTHONIOENCODING"] = "utf-8"
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, encoding="utf-8", check=False)


def parsed(raw: str) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads(raw)
    except ValueError as error:
        raise DemoError(f"specalign check --format json printed no JSON ({error})") from None
    labels = {label(engine) for engine in report["engines"]}
    expect({OLD, NEW} <= labels, f"{OLD} and {NEW} should be among the engines checked by default: {sorted(labels)}")
    return report


def label(engine: dict[str, Any]) -> str:
    return f"{engine['engine']}=={engine['version']}" if engine["version"] else str(engine["engine"])


def errors(report: dict[str, Any], engine: str) -> list[dict[str, Any]]:
    return [f for f in report["findings"] if f["severity"] == "error" and f["engine"] in (engine, None)]


def codes(findings: list[dict[str, Any]]) -> str:
    return ", ".join(f["code"] for f in findings) or "none"


def select(text: str) -> str:
    """The heading and the table of a text report, then the findings of SGLang's versions only; the file has all of them."""
    heading, table, *blocks = text.rstrip().split("\n\n")
    kept = [block for block in blocks if block.startswith("sglang==")]
    hidden = len([block for block in blocks[:-1] if block not in kept])
    more = f"(findings about {hidden} others: {shown(OUT / 'check.txt')})"
    return "\n\n".join([heading, table, *kept, more, blocks[-1]])


def shortened(output: str) -> str:
    """The summary of a failing run, and one failure in full."""
    lines = output.rstrip().splitlines()
    at = next((i for i, line in enumerate(lines) if CRASH in line), 0)
    return "\n".join(["...", *lines[max(0, at - 1) : at + 3], "...", *lines[-SHOWN_LINES:]])


def read_junit(path: Path) -> tuple[int, list[str]]:
    """The number of tests, and the text of every failure or error."""
    cases = list(ET.parse(path).getroot().iter("testcase"))
    bad = [found for case in cases for found in (*case.findall("failure"), *case.findall("error"))]
    return len(cases), [f"{found.get('message')}\n{found.text}" for found in bad]


def expect(holds: bool, message: str) -> None:
    if not holds:
        raise DemoError(message)


def last_lines(done: subprocess.CompletedProcess[str]) -> str:
    return " | ".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-3:])


def title(text: str) -> None:
    print(f"\n$ {text}\n", flush=True)


def shown(path: Path) -> str:
    """A path of the checkout as a user in its root would type it."""
    return path.relative_to(ROOT).as_posix()


if __name__ == "__main__":
    sys.exit(main())
