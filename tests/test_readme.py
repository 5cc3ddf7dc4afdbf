"""The file tree of README.md has every file of the project, and no other."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import ROOT, blocks


def tree_paths() -> Iterator[str]:
    """The paths in the README's file tree; those of folders end in a slash."""
    (block,) = blocks("README.md", "text")
    parents: list[str] = []
    for line in block.text.splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        parents[depth:] = [name]
        stem, braces, suffixes = name.partition("{")
        names = [stem + suffix for suffix in suffixes.rstrip("}").split(",")] if braces else [name]
        yield from ("".join([*parents[:depth], each]) for each in names)


def tracked_files() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so nothing says which files belong to the project")
    command = ["git", "-c", "safe.directory=*", "-C", str(ROOT), "ls-files"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_the_file_tree_has_every_file_or_its_folder() -> None:
    said, tracked = list(tree_paths()), tracked_files()
    assert len(said) == len(set(said))
    whole = [path for path in said if path.endswith("/") and sum(other.startswith(path) for other in said) == 1]
    # The folders below tests/ have lines of their own, its files do not.
    in_folders = {t for t in tracked if t.startswith((*whole, "tests/"))}
    missing = [t for t in tracked if t not in said and t not in in_folders]
    assert missing == [], f"add lines to the README's file tree for: {', '.join(missing)}"


def test_the_file_tree_has_nothing_that_is_not_there() -> None:
    tracked = tracked_files()
    folders = {f"{parent}/" for t in tracked for parent in Path(t).parents}
    gone = [path for path in tree_paths() if path not in tracked and path not in folders]
    assert gone == [], f"remove lines from the README's file tree for: {', '.join(gone)}"
