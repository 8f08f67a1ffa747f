"""Fails unless every GPU that this process sees computes: before tests are blamed for a machine.

    python gpu_health.py --gpus N [--mib M] [--seconds S] [-- CMD [ARG ...]]

On each GPU it allocates M MiB ($GPU_HEALTH_MIB, else 1024), writes a pattern, reads it back, and takes a matrix product whose
value is known exactly; between two GPUs it copies. A driver that hangs is ended after S seconds. With CMD, the command follows
in the place of this process, on the same GPUs. The check runs in a process of its own: CMD finds no CUDA context of ours.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from typing import Any

SIDE = 256
MIB = 2**20


class SickError(Exception):
    """What is wrong with the machine, in words for the one who looks after it."""


def main() -> int:
    arguments = sys.argv[1:]
    command = arguments[arguments.index("--") + 1 :] if "--" in arguments else []
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--mib", type=int, default=int(os.environ.get("GPU_HEALTH_MIB") or 1024))
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--in-this-process", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    if args.in_this_process:
        return report(args.gpus, args.mib)
    status = check_apart(args)
    if command and status == 0:
        sys.stdout.flush()
        os.execvp(command[0], command)
    return status


def check_apart(args: argparse.Namespace) -> int:
    """The exit code of the check in a process of its own, which is killed where it hangs."""
    check = [sys.executable, __file__, "--in-this-process", f"--gpus={args.gpus}", f"--mib={args.mib}"]
    try:
        return subprocess.run(check, timeout=args.seconds, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"::error::GPU health: no answer within {args.seconds:g} s: the driver hangs. Look at dmesg for Xid lines.")
        return 1


def report(gpus: int, mib: int) -> int:
    try:
        for line in check_all(gpus, mib):
            print(line)
    except SickError as error:
        print(f"::error::GPU health: {error}")
        return 1
    return 0


def check_all(gpus: int, mib: int) -> list[str]:
    torch = load_torch()
    seen = torch.cuda.device_count()
    if seen != gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise SickError(f"torch sees {seen} GPUs, expected {gpus} (CUDA_VISIBLE_DEVICES={visible!r})")
    lines = []
    for number in range(gpus):
        name = f"cuda:{number}"
        try:
            check_one(torch, name, mib)
            check_copy(torch, name, f"cuda:{(number + 1) % gpus}")
        except RuntimeError as error:  # torch's errors of CUDA, and of memory, are RuntimeErrors
            raise SickError(f"{name}: {type(error).__name__}: {error}") from error
        lines.append(f"{name}: {torch.cuda.get_device_name(number)}: {mib} MiB written and read, product exact")
    return lines


def load_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise SickError(f"torch cannot be imported: {error}") from error
    if torch.version.cuda is None:
        raise SickError(f"torch {torch.__version__} was built without CUDA: install the build for this machine's driver")
    if not torch.cuda.is_available():
        raise SickError(f"torch {torch.__version__} finds no GPU that it can use: does nvidia-smi work?")
    return torch


def check_one(torch: Any, device: str, mib: int) -> None:
    """Memory holds what is written, and tensor cores multiply: whole numbers below 2048 are exact in float16."""
    count = mib * MIB // 4
    memory = torch.arange(count, dtype=torch.int32, device=device)
    wrong = int((memory.cpu() != torch.arange(count, dtype=torch.int32)).sum())
    if wrong:
        raise SickError(f"{device}: {wrong} of {count} words read back other than written: bad memory")
    left = (torch.arange(SIDE * SIDE) % 7 - 3).reshape(SIDE, SIDE)
    right = (torch.arange(SIDE * SIDE) % 5 - 2).reshape(SIDE, SIDE)
    product = left.to(device, torch.float16) @ right.to(device, torch.float16)
    if not torch.equal(product.cpu().long(), left @ right):
        raise SickError(f"{device}: a matrix product of small whole numbers is wrong")


def check_copy(torch: Any, device: str, other: str) -> None:
    if device == other:
        return
    sent = torch.arange(MIB, dtype=torch.int32, device=device)
    if not torch.equal(sent.to(other).cpu(), sent.cpu()):
        raise SickError(f"a copy from {device} to {other} arrived changed: peer access is broken (IOMMU, ACS?)")


if __name__ == "__main__":
    sys.exit(main())
