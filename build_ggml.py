#!/usr/bin/env python3
"""Fetches and builds ggml, pyggml's native library and the cffi extension into a cache outside the checkout.

    python build_ggml.py --install         build what this machine can use, and make this checkout importable
    python build_ggml.py --reference       build llama.cpp's own programs, for tests and benchmarks
    python build_ggml.py --print lib       print where the libraries lie (or source, reference, cache, key)

Every option has an environment name (PYGGML_BACKENDS, PYGGML_CUDA_ARCH, PYGGML_VULKAN_INCLUDE, PYGGML_SOURCE,
PYGGML_PORTABLE, PYGGML_JOBS), which `pip install` honours too. PYGGML_CACHE moves the cache.
Needs only Python's standard library; cffi when it compiles.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from third_party import archive, backends, cache, gpu, layout, module, reference, toolchain  # noqa: E402
from third_party.errors import BuildError  # noqa: E402
from third_party.recipe import Recipe, read_own_files  # noqa: E402

PRINTABLE = ("lib", "source", "reference", "cache", "key")
FALSE_WORDS = ("", "0", "no", "off", "false")


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; what it leaves open comes from the environment."""
    env = os.environ
    parser = argparse.ArgumentParser(prog="build_ggml.py", description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add(
        "--backends",
        metavar="LIST",
        default=env.get("PYGGML_BACKENDS"),
        help="cpu,cuda,vulkan: exactly these",
    )
    add(
        "--cuda-arch",
        metavar="ARCH",
        default=env.get("PYGGML_CUDA_ARCH"),
        help="native, all, or a list such as 80,90",
    )
    add(
        "--vulkan-include",
        metavar="DIR",
        default=env.get("PYGGML_VULKAN_INCLUDE"),
        help="a folder of newer Vulkan headers",
    )
    add(
        "--source",
        metavar="PATH",
        default=env.get("PYGGML_SOURCE"),
        help="build offline from an unpacked tree",
    )
    add("--portable", action="store_true", default=env.get("PYGGML_PORTABLE", "").lower() not in FALSE_WORDS,
        help="compile every CPU variant, for wheels")  # fmt: skip
    add(
        "--jobs",
        type=int,
        default=env.get("PYGGML_JOBS"),
        help="compilers at a time (default: this process's CPUs)",
    )
    add(
        "--install", action="store_true", help="link the libraries into this checkout, and make it importable"
    )
    add("--reference", action="store_true", help="build llama.cpp's programs instead of our libraries")
    add("--print", dest="asked", choices=PRINTABLE, help="print this and build nothing")
    add("--json", action="store_true", help="print every fact as JSON and build nothing")
    return parser.parse_args(arguments)


def recipe(args: argparse.Namespace) -> Recipe:
    """Return what to build for parsed options.

    Raises: BuildError when a tool or a named backend is missing.
    """
    named = frozenset(filter(None, args.backends.replace(" ", "").split(","))) if args.backends else None
    tools = toolchain.find()
    cards = gpu.find()
    if args.portable:
        cards = replace(cards, compute_capabilities=())  # a wheel is for other machines' cards too
    choice = backends.choose(named, cards, args.cuda_arch, args.vulkan_include)
    source = Path(args.source).expanduser().resolve() if args.source else None
    return Recipe(source, args.portable, tools, choice, read_own_files())


def facts(plan: Recipe) -> dict[str, object]:
    """Return where everything lies and what is built, without building."""
    if plan.source:
        source = archive.unpacked(plan.source)
        folder = source.llama or source.ggml
    else:
        folder = archive.pinned_folder(archive.read_lock())
    places = {"lib": plan.lib, "source": folder, "reference": plan.reference}
    return {
        **{name: str(path) for name, path in places.items()},
        "cache": str(cache.root()),
        "key": plan.lib.name,
        "has": {name: path.exists() for name, path in places.items()},
        "build": plan.facts(),
    }


def build(arguments: Sequence[str] = ()) -> Path:
    """Build our libraries as the options and the environment say, and return their folder.

    Raises: BuildError, CompileError.
    """
    args = options(arguments)
    plan = recipe(args)
    _show(plan)
    return module.make(plan, _jobs(args))


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit status."""
    try:
        args = options(arguments)
        plan = recipe(args)
        if args.asked or args.json:
            found = facts(plan)
            print(found[args.asked] if args.asked else json.dumps(found, indent=1))
            return 0
        _show(plan)
        if args.reference:
            print(reference.make(plan, _jobs(args)))
        if args.install or not args.reference:
            lib = module.make(plan, _jobs(args))
            if args.install:
                module.place(lib, ROOT / "pyggml")
                layout.link_packages(ROOT)
            print(lib)
    except BuildError as error:
        print(f"build_ggml.py: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("\nbuild_ggml.py: interrupted; run it again to go on where it stopped", file=sys.stderr)
        return 130
    return 0


def _jobs(args: argparse.Namespace) -> int:
    return int(args.jobs) if args.jobs else len(os.sched_getaffinity(0))


def _show(plan: Recipe) -> None:
    for line in plan.choice.notes:
        print(line, file=sys.stderr)
    for line in plan.choice.warnings:
        print(f"WARNING: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
