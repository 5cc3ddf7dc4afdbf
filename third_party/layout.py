"""How the checkout's folders map to import names: pyggml, engine as pyggml.engine, server as pyggml.server."""

from __future__ import annotations

from pathlib import Path

FOLDERS = {"pyggml": "pyggml", "engine": "pyggml.engine", "server": "pyggml.server"}


def packages(root: Path) -> dict[str, str]:
    """Return each package's import name and its folder in the checkout."""
    found = {}
    for folder, name in FOLDERS.items():
        for init in sorted((root / folder).rglob("__init__.py")):
            inner = init.parent.relative_to(root / folder).parts
            found[".".join([name, *inner])] = init.parent.relative_to(root).as_posix()
    return found


def import_folder(root: Path) -> Path:
    """Return the folder of the checkout in which Python finds pyggml and nothing else."""
    return root / "build" / "import"


def link_packages(root: Path) -> None:
    """Make the git-ignored links by which the checkout can be imported as it is installed."""
    for link, target in (
        (root / "pyggml" / "engine", "../engine"),
        (root / "pyggml" / "server", "../server"),
        (import_folder(root) / "pyggml", "../../pyggml"),
    ):
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(target)
