"""Store a GGUF model's matrices in another type and print what becomes of each tensor.

    python examples/requantize_gguf.py model.gguf smaller.gguf --type q4_k

One-dimensional tensors and those whose rows do not fit the type's blocks stay as they are. The file may
be the first of several; the result is one file.
"""

from __future__ import annotations

import argparse
import os

import numpy as np

import pyggml as gg
from pyggml.gguf_writer import GGUFWriter


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", help="the GGUF file to read")
    parser.add_argument("target", help="the GGUF file to write")
    parser.add_argument("--type", default="q8_0", help="f32, f16, bf16, q8_0, q6_k, q4_k, ... (default q8_0)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    try:
        requantize(options.source, options.target, gg.dtype(options.type), options.threads)
    except gg.PyggmlError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


def requantize(source: str, target: str, kind: gg.DType, n_threads: int) -> None:
    with gg.GGUF(source) as model:
        # The number of llama.cpp's name for the whole file's type, which is no longer true.
        metadata = {key: value for key, value in model.metadata.items() if key != "general.file_type"}
        writer = GGUFWriter(target, metadata, model.metadata.types, n_threads=n_threads)
        for number, tensor in enumerate(model.tensors.values(), 1):
            is_matrix = tensor.n_dims > 1 and tensor.ne[0] % kind.block_size == 0
            new = kind if is_matrix else tensor.type

            def data(tensor: gg.GGUFTensor = tensor, new: gg.DType = new, number: int = number) -> np.ndarray:
                print(
                    f"{number}/{len(model)} {tensor.name} {tensor.shape}: {tensor.type} -> {new}", flush=True
                )
                return tensor.data if new == tensor.type else tensor.numpy()

            writer.add_tensor(tensor.name, data, new, shape=tensor.shape)
        writer.write()
        before = sum(os.path.getsize(path) for path in model.paths)
    print(f"{before / 1e6:.1f} MB -> {os.path.getsize(target) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
