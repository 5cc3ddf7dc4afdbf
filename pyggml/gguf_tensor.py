"""One tensor of a GGUF file: its description and its bytes in the mapped file, without a copy.

Safe to read from several threads. Arrays that were handed out keep the mapping alive.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .dtypes import DType, dequantize
from .errors import ShapeError

if TYPE_CHECKING:
    from .gguf_file import GGUFFile


@dataclass(frozen=True)
class GGUFTensor:
    """A named tensor in a file.

    `ne` is ggml's shape, innermost first and always of four; `offset` counts bytes from the start of the
    file that `file_index` picks from the set's `paths`.
    """

    name: str
    ne: tuple[int, int, int, int]
    n_dims: int
    type: DType
    offset: int
    n_bytes: int
    file_index: int
    file: GGUFFile = field(repr=False, compare=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape in numpy's order, outermost dimension first."""
        return self.ne[: self.n_dims][::-1]

    @property
    def n_rows(self) -> int:
        """How many rows of `ne[0]` elements it has."""
        return self.ne[1] * self.ne[2] * self.ne[3]

    @property
    def data(self) -> np.ndarray:
        """Its bytes, read-only, as they lie in the mapped file.

        Shapes: uint8 [n_bytes].
        """
        return self.file.memory[self.offset : self.offset + self.n_bytes]

    def rows(self, start: int, stop: int) -> np.ndarray:
        """The bytes of a range of rows.

        Shapes: uint8 [(stop - start) * bytes of a row]. Raises ShapeError outside of the rows.
        """
        if not 0 <= start <= stop <= self.n_rows:
            raise ShapeError(f"{self.name}: rows {start} to {stop} were asked for; it has {self.n_rows}")
        row_bytes = self.ne[0] // self.type.block_size * self.type.type_size
        return self.data[start * row_bytes : stop * row_bytes]

    def numpy(self) -> np.ndarray:
        """Its values: a read-only view for integers, f32 and f64, a new float32 array for all else.

        Shapes: [*shape].
        """
        if self.type.numpy is not None and self.type.name != "f16":
            return self.data.view(self.type.numpy).reshape(self.shape)
        return dequantize(self.data, self.type, self.shape)
