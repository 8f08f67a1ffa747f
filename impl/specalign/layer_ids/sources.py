"""Where a draft head or a target lies on this machine: a file, a folder, or a repository in the Hugging Face cache.

Nothing is downloaded. The cache is laid out as `models--ORG--NAME/{blobs,refs,snapshots}`: `refs/REVISION` holds a commit
hash, `snapshots/HASH` the files of that commit as links into `blobs`. Only files that somebody asked for are in it. Source
of the layout: huggingface.co/docs/hub/local-cache; of the environment variables: `huggingface_hub/constants.py`.
"""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import Final

from specalign.layer_ids.files import InputError, is_there, list_names, quoted, read_bounded, shown, unreadable, unusable

CONFIG_NAME: Final = "config.json"

_REPO_PART: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_REPO_ID: Final = re.compile(rf"(?P<repo>(?:{_REPO_PART}/)?{_REPO_PART})(?:@(?P<revision>[A-Za-z0-9_][A-Za-z0-9._/-]*))?")
_COMMIT: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_REF_BYTES: Final = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A config and what lies beside it.

    Attributes:
        config: the config file. It may turn out to be unreadable: nothing has been opened yet.
        folder: the folder that may hold weights; None for a config file of another name than config.json, whose
            neighbours need not belong to it.
        name: for messages: the repository id where the path lies in a Hugging Face cache, else the source as given.
    """

    config: Path
    folder: Path | None
    name: str


def locate(source: str, *, hub_cache: Path | None = None) -> Source:
    """The config that `source` names. A path that exists wins over a repository id.

    Args:
        source: a config file; a folder with config.json (a snapshot of the Hugging Face cache is one); a repository's folder
            in that cache (`models--ORG--NAME`); or a repository id `ORG/NAME`, with `@REVISION` if it is not main.
        hub_cache: the cache; by default `default_hub_cache()`.

    Raises:
        InputError: nothing is there, a folder without config.json, or a revision that the cache does not hold. The message
            for an unknown repository id has several lines: it says how to fetch the config and the tensor headers.
    """
    path = _expanded(source)
    try:
        path.stat()
    except FileNotFoundError as error:
        if path.is_symlink():
            raise unreadable(path, error) from error
    except NotADirectoryError:
        pass  # a/b where a is a file: there is no such path, and it may still be a repository id
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:  # a NUL byte
        raise unusable(path, error) from error
    else:
        return _from_path(path, source)
    return _from_cache(source, hub_cache if hub_cache is not None else default_hub_cache())


def default_hub_cache() -> Path:
    """$HF_HUB_CACHE, else its old name $HUGGINGFACE_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub, else
    ~/.cache/huggingface/hub; `~` and `$NAME` in them are expanded, and an empty variable counts as unset.

    Raises:
        InputError: no home directory is known where one is needed.
    """
    for name, below in (
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
    ):
        if value := os.environ.get(name):
            return _expanded(os.path.expandvars(value)) / below
    return _expanded("~/.cache/huggingface/hub")


def _expanded(text: str) -> Path:
    if not text:
        raise InputError("the source is empty; give a config file, a folder or a repository id ORG/NAME")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # ~nobody/x, or no home at all
        raise InputError(f"{shown(text)}: {error}; give the path without ~") from error


def _from_path(path: Path, source: str) -> Source:
    if not path.is_dir():
        beside = path.parent if path.name == CONFIG_NAME else None
        return Source(path, beside, _repo_of(path.parent) or source)
    if is_there(path / CONFIG_NAME):
        return Source(path / CONFIG_NAME, path, _repo_of(path) or source)
    if is_there(path / "snapshots"):
        repo = _repo_id(path.absolute().name)
        return _from_repo_folder(path, repo or source, None)
    fetch = _repo_of(path)
    hint = f"next: hf download {fetch} {CONFIG_NAME}" if fetch else f"give the folder or the file that holds {CONFIG_NAME}"
    raise InputError(f"{shown(path)}: a folder without {CONFIG_NAME}; {hint}")


def _from_cache(source: str, cache: Path) -> Source:
    match = _REPO_ID.fullmatch(source)
    if match is None or ".." in source or "--" in match["repo"] or source.endswith(".json"):
        raise InputError(f"{shown(source)}: no such file or folder; check the path, or give a repository id ORG/NAME")
    repo, revision = match["repo"], match["revision"]
    folder = cache / f"models--{repo.replace('/', '--')}"
    if is_there(folder):
        return _from_repo_folder(folder, repo, revision)
    if "/" not in repo:
        raise InputError(
            f"{shown(source)}: no such file or folder, and no such repository in the Hugging Face cache {shown(cache)};"
            " check the path, or give a repository id ORG/NAME"
        )
    raise InputError(
        f"{source}: no such file or folder, and not in the Hugging Face cache {shown(cache)}; nothing is downloaded for you."
        f" Next:\n{how_to_fetch(repo, revision)}"
    )


def how_to_fetch(repo: str, revision: str | None = None) -> str:
    """The shell commands, one a line and indented, that fetch a repository's config and tensor headers without the weights."""
    at = f" --revision {revision}" if revision else ""
    url = f"https://huggingface.co/{repo}/resolve/{revision or 'main'}/model.safetensors"
    return (
        f"  hf download {repo} {CONFIG_NAME}{at}\n"
        f"  hf download {repo} --include '*.safetensors.index.json'{at}  # if the weights come in shards; else:\n"
        f"  curl -L -r 0-1048575 {url} -o model.safetensors.header --fail  # headers only; put it beside {CONFIG_NAME}"
    )


def _from_repo_folder(folder: Path, repo: str, revision: str | None) -> Source:
    snapshot = _snapshot(folder, repo, revision)
    if not is_there(snapshot / CONFIG_NAME):
        at = f" --revision {revision}" if revision else ""
        raise InputError(
            f"{shown(snapshot)}: this snapshot of {shown(repo)} has no {CONFIG_NAME}; next: hf download {shown(repo)}"
            f" {CONFIG_NAME}{at}"
        )
    return Source(snapshot / CONFIG_NAME, snapshot, f"{repo}@{revision}" if revision else repo)


def _snapshot(folder: Path, repo: str, revision: str | None) -> Path:
    """The snapshot of a revision: through refs/REVISION, or a commit hash as it is. Without a revision main, and where main
    was never recorded (a download by commit hash does that) the only snapshot there is."""
    snapshots = folder / "snapshots"
    commit = _read_ref(folder / "refs" / (revision or "main"))
    if commit is None and revision is not None and _COMMIT.fullmatch(revision):
        commit = revision
    present = list_names(snapshots) if is_there(snapshots) else []
    if commit is None and revision is None and len(present) == 1:
        commit = present[0]
    if commit is not None and commit in present:
        return snapshots / commit
    have = ", ".join(shown(name) for name in present[:5]) + (", ..." if len(present) > 5 else "")
    raise InputError(
        f"{shown(folder)}: no snapshot of the revision {shown(revision or 'main')}; there"
        f" {f'are: {have}; name one as {shown(repo)}@REVISION' if present else 'is none'}, or: hf download {shown(repo)}"
        f" {CONFIG_NAME}{f' --revision {revision}' if revision else ''}"
    )


def _read_ref(ref: Path) -> str | None:
    if not is_there(ref):
        return None
    commit = read_bounded(ref, _MAX_REF_BYTES).decode("ascii", errors="replace").strip()
    if not _COMMIT.fullmatch(commit):
        raise InputError(f"{shown(ref)}: holds {quoted(commit)}, no commit hash; download the repository again")
    return commit


def _repo_of(folder: Path) -> str | None:
    """The repository id for a path like models--ORG--NAME/snapshots/HASH, else None."""
    snapshots = folder.absolute().parent
    return _repo_id(snapshots.parent.name) if snapshots.name == "snapshots" else None


def _repo_id(folder_name: str) -> str | None:
    repo = folder_name.removeprefix("models--").replace("--", "/")
    return repo if folder_name.startswith("models--") and _REPO_ID.fullmatch(repo) else None
