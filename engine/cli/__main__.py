"""`python -m pyggml.engine.cli` is the command `pyggml`."""

from __future__ import annotations

import sys

from .main import main

sys.exit(main())
