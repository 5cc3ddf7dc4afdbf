"""Writes the C source of the cffi extension `pyggml._ggml` from the declarations in decl/.

Used by build_ggml.py when it compiles; never imported at run time. The C compiler checks the declarations against
ggml's own headers. The source is compiled for Python's limited API, so that one build serves Python 3.10 and later.
"""

from __future__ import annotations

from pathlib import Path

import cffi

PACKAGE = Path(__file__).resolve().parent
# Declarations build on each other: these come first, the others follow by name.
FIRST = ("ggml.h", "ggml_backend.h", "gguf.h", "native.h")
INCLUDES = ("ggml.h", "ggml-alloc.h", "ggml-backend.h", "gguf.h")


def declarations() -> list[Path]:
    """Return the files of decl/ in the order in which cffi reads them."""
    files = {path.name: path for path in sorted((PACKAGE / "decl").glob("*.h"))}
    return [*(files.pop(name) for name in FIRST), *files.values()]


def emit(target: Path) -> None:
    """Write the extension's C source to `target`."""
    ffi = cffi.FFI()
    for path in declarations():
        ffi.cdef(path.read_text())
    own_headers = sorted(path.name for path in (PACKAGE / "native").glob("*.h"))
    ffi.set_source("pyggml._ggml", "".join(f'#include "{name}"\n' for name in (*INCLUDES, *own_headers)))
    ffi.emit_c_code(str(target))
