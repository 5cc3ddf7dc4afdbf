"""The order of the packages and the form of their files: imports go server -> engine -> pyggml, by public names."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyggml
import pyggml.engine

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("pyggml", "engine", "server")
MAX_LINES = 350
FORBIDDEN_WORDS = ("util", "utils", "helper", "helpers", "manager", "common", "misc")

PUBLIC = {"pyggml": set(pyggml.__all__), "pyggml.engine": set(pyggml.engine.__all__)}
# What each package may import besides itself and Python's own modules. `pyggml` stands for its public names.
MAY_IMPORT = {
    "pyggml": {"cffi", "numpy"},
    # markupsafe is jinja2's
    "engine": {"pyggml", "numpy", "tokenizers", "jinja2", "llguidance", "markupsafe", "tqdm", "huggingface_hub"},
    "server": {"pyggml.engine", "aiohttp", "msgspec", "prometheus_client", "redis", "numpy"},
}
# Commands of the command line start what comes later in the order; they import it only when they run.
STARTS_LATER = {Path("engine/cli")}


def files(*packages: str) -> list[Path]:
    found = [
        path.relative_to(ROOT) for package in packages for path in sorted((ROOT / package).rglob("*.py"))
    ]
    return [path for path in found if not (ROOT / path.parts[0] / path.parts[1]).is_symlink()]


def tree(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(), str(path))


def absolute_imports(path: Path) -> Iterator[tuple[str, list[str], int]]:
    """Each import as module, names (none for `import module`) and line."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, [], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module, [alias.name for alias in node.names], node.lineno


def layer(module: str) -> str:
    """The package that a module belongs to: pyggml, pyggml.engine, pyggml.server, or the outermost name of others."""
    parts = module.split(".")
    is_later = len(parts) > 1 and parts[0] == "pyggml" and parts[1] in ("engine", "server")
    return ".".join(parts[: 2 if is_later else 1])


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_one_way(package: str) -> None:
    wrong = [
        f"{path}:{line}: {module}"
        for path in files(package)
        for module, _, line in absolute_imports(path)
        if layer(module) not in MAY_IMPORT[package] | sys.stdlib_module_names | {"__future__"}
        and not (any(f in path.parents for f in STARTS_LATER) and layer(module) == "pyggml.server")
    ]
    assert not wrong


@pytest.mark.parametrize("package", ["engine", "server"])
def test_packages_use_the_public_names_of_those_before_them(package: str) -> None:
    wrong = []
    for path in files(package):
        for module, names, line in absolute_imports(path):
            public = PUBLIC.get(layer(module))
            if public is not None and (module != layer(module) or not set(names) <= public):
                wrong.append(f"{path}:{line}: {module} {', '.join(sorted(set(names) - public))}")
        aliases = module_aliases(path)
        for node in ast.walk(tree(path)):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in aliases
            ):
                if node.attr not in PUBLIC[aliases[node.value.id]] and not node.attr.startswith("__"):
                    wrong.append(f"{path}:{node.lineno}: {node.value.id}.{node.attr}")
    assert not wrong


def module_aliases(path: Path) -> dict[str, str]:
    """The names by which a file calls whole packages, as `import pyggml as gg` does."""
    return {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name in PUBLIC
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_inside_a_package_are_relative(package: str) -> None:
    own = "pyggml" if package == "pyggml" else f"pyggml.{package}"
    wrong = [
        f"{path}:{line}: {module}"
        for path in files(package)
        for module, _, line in absolute_imports(path)
        if layer(module) == own
    ]
    assert not wrong


def test_no_relative_import_leaves_its_package() -> None:
    wrong = [
        f"{path}:{node.lineno}"
        for path in files(*PACKAGES)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom) and node.level > len(path.parts) - 1
    ]
    assert not wrong


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    lengths = {path: len((ROOT / path).read_text().splitlines()) for path in files(*PACKAGES)}
    assert {path: n for path, n in lengths.items() if n > MAX_LINES} == {}


def test_no_function_is_longer_than_a_page() -> None:
    wrong = [
        f"{path}:{node.lineno}: {node.name}"
        for path in files(*PACKAGES)
        for node in ast.walk(tree(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno
        if node.end_lineno - node.lineno >= 60
    ]
    assert not wrong


def test_files_are_called_by_what_they_hold() -> None:
    wrong = [path for path in files(*PACKAGES) if set(path.stem.split("_")) & set(FORBIDDEN_WORDS)]
    assert not wrong


def test_every_file_says_what_it_is_for() -> None:
    wrong = [path for path in files(*PACKAGES) if not ast.get_docstring(tree(path))]
    assert not wrong


def test_the_walk_sees_files_imports_and_names() -> None:
    assert {"pyggml/graph.py", "engine/llm.py", "engine/models/llama.py"} <= {
        str(path) for path in files(*PACKAGES)
    }
    assert {m for m, _, _ in absolute_imports(Path("engine/errors.py"))} >= {"__future__", "pyggml"}
    assert module_aliases(Path("engine/forward.py")) == {"gg": "pyggml"}


LATER = """
import subprocess
import sys
import pyggml
assert not [name for name in sys.modules if name.startswith(("pyggml.engine", "pyggml.server"))]
assert pyggml.engine.LLM is sys.modules["pyggml.engine"].LLM
assert not hasattr(pyggml, "motor")
del sys.modules["pyggml.engine"], pyggml.engine
sys.modules["pyggml.engine"] = None
try:
    pyggml.engine
except AttributeError as error:
    print(error)
"""


def test_the_packages_after_it_are_imported_when_they_are_first_named() -> None:
    done = subprocess.run([sys.executable, "-c", LATER], check=False, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("pyggml.engine is not installed\n", "")
