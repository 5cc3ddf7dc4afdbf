"""Installs the three packages and what build_ggml.py builds; everything else is in pyproject.toml.

The top-level folders engine/ and server/ are installed as pyggml.engine and pyggml.server. An editable install reaches
them through two git-ignored links inside pyggml/, so that type checkers see the same package as Python does.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command import editable_wheel as editable
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

import build_ggml  # noqa: E402
from third_party import layout, module  # noqa: E402
from third_party.errors import BuildError  # noqa: E402


def build() -> Path:
    """Return the folder of the built libraries; ends the installation with one line when they cannot be built."""
    try:
        return build_ggml.build()
    except BuildError as error:
        print(f"pyggml cannot be built: {error}", file=sys.stderr)
        raise SystemExit(error.exit_status) from None


class NativeDistribution(Distribution):
    """A distribution with compiled files, which setuptools does not compile itself."""

    def has_ext_modules(self) -> bool:
        """Make the wheel one for this platform."""
        return True


class BuildPackages(build_py):
    """Copies the Python files, then adds the libraries."""

    def run(self) -> None:
        """Run the command."""
        super().run()
        if not self.editable_mode:
            self.native_files = module.place(build(), Path(self.build_lib) / "pyggml")

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """Return all files written, the libraries among them."""
        return [*super().get_outputs(include_bytecode), *map(str, getattr(self, "native_files", []))]


class Wheel(bdist_wheel):
    """A wheel for every Python from 3.10."""

    def finalize_options(self) -> None:
        """Set the stable ABI's tag."""
        self.py_limited_api = "cp310"
        super().finalize_options()


class EditableWheel(editable.editable_wheel):
    """Builds the libraries into the checkout and puts a folder on sys.path that holds nothing but pyggml."""

    def run(self) -> None:
        """Run the command; setuptools itself would only warn of a build that failed."""
        module.place(build(), ROOT / "pyggml")
        layout.link_packages(ROOT)
        super().run()

    def _select_strategy(
        self, name: str, tag: str, build_lib: str | os.PathLike[str]
    ) -> editable.EditableStrategy:
        # Without this hook setuptools falls back on an import finder, which type checkers cannot follow.
        return editable._StaticPth(self.distribution, name, [layout.import_folder(ROOT)])


setup(
    distclass=NativeDistribution,
    packages=list(layout.packages(ROOT)),
    package_dir=layout.packages(ROOT),
    package_data={"": ["py.typed"], "pyggml.server": ["page/*"]},
    include_package_data=False,
    cmdclass={"build_py": BuildPackages, "bdist_wheel": Wheel, "editable_wheel": EditableWheel},
)
