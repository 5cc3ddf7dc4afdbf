"""Marks that are written with holes, as in `<function={name}>`."""

from __future__ import annotations

import re

HOLE = re.compile(r"\{(\w+)\}")
