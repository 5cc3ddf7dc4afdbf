"""Buffers: named tensors in device memory, data in and out, what may not be written, and the end."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from graphs import cpu, random, stored

import pyggml as gg
from pyggml._ffi import last_native_error, lib

KINDS = ["f32", "f16", "bf16", "q8_0", "q4_k", "i8", "i16", "i32", "i64", "f64"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_set_is_read_back(kind: str) -> None:
    values = np.round(random(3, 256) * 9)
    with gg.Buffer(cpu(), {"a": ((3, 256), kind), "b": ((3, 256), kind)}) as buffer:
        integers = gg.dtype(kind).numpy is not None and kind.startswith("i")
        data = values.astype(np.int64) if integers else values
        buffer["a"].set(data)
        buffer["b"].set(np.zeros_like(data))
        np.testing.assert_array_equal(buffer["a"].numpy(), values if integers else stored(values, kind))
        assert not buffer["b"].numpy().any()


def test_tensors_know_their_name_shape_type_and_size() -> None:
    with gg.Buffer(cpu(), {"k": ((2, 3, 64), "q8_0")}) as buffer:
        k = buffer["k"]
        assert (k.name, k.shape, k.ndim, k.dtype.name, k.n_bytes) == ("k", (2, 3, 64), 3, "q8_0", 6 * 68)
        assert k.strides == (3 * 68, 68, 34)
        assert k.is_contiguous
        assert repr(k) == "Tensor('k', (2, 3, 64), q8_0)"
        assert "k" in buffer and "v" not in buffer and list(buffer) == ["k"] and len(buffer) == 1
        assert buffer.n_bytes >= k.n_bytes


def test_raw_bytes_are_taken_from_an_offset_on() -> None:
    with gg.Buffer(cpu(), {"a": ((4, 8), "f32")}) as buffer:
        buffer.clear()
        buffer["a"].set(np.ones(8, np.float32).view(np.uint8), offset=2 * 32)
        assert buffer["a"].numpy().sum(-1).tolist() == [0, 0, 8, 0]


def test_rows_are_zeroed_alone() -> None:
    with gg.Buffer(cpu(), {"a": ((4, 8), "f16")}) as buffer:
        buffer["a"].set(np.ones((4, 8), np.float16))
        buffer["a"].zero(start_row=1, n_rows=2)
        assert buffer["a"].numpy().sum(-1).tolist() == [8, 0, 0, 8]


SETTINGS = [
    (lambda a: a.set(np.ones((4, 7), np.float32)), r"a has shape \(4, 8\); the data has \(4, 7\)"),
    (lambda a: a.set(np.ones(40, np.uint8), offset=100), "40 bytes at 100 do not fit 128"),
    (lambda a: a.set(np.ones(4, np.uint8), offset=-4), "4 bytes at -4 do not fit 128"),
    (lambda a: a.set(np.full((4, 8), "x")), "takes numbers; the data is <U1"),
    (lambda a: a.zero(start_row=3, n_rows=2), "rows 3 to 5 are outside"),
    (lambda a: a.zero(start_row=-1, n_rows=1), "rows -1 to 0 are outside"),
    (lambda a: a.zero(start_row=2, n_rows=-1), "rows 2 to 1 are outside"),
]


@pytest.mark.parametrize(("use", "words"), SETTINGS, ids=[words for _, words in SETTINGS])
def test_data_that_does_not_fit_is_refused(use: Any, words: str) -> None:
    with gg.Buffer(cpu(), {"a": ((4, 8), "f32")}) as buffer, pytest.raises(gg.ShapeError, match=words):
        use(buffer["a"])


@pytest.mark.parametrize("data", [np.ones((2, 2)) * 1.5, np.array([[1, 2], [3, 2**40]])])
def test_integers_take_only_integers_that_fit(data: np.ndarray) -> None:
    with (
        gg.Buffer(cpu(), {"i": ((2, 2), "i32")}) as buffer,
        pytest.raises(gg.ShapeError, match="does not fit it"),
    ):
        buffer["i"].set(data)


SPECS = [
    (((4, 33), "q8_0"), "rows of 33 do not fit q8_0, whose blocks hold 32"),
    (((4, 32), "q8_1"), "q8_1 is for activations within kernels; use q8_0"),
    (((), "f32"), "has 0 dimensions"),
    (((1, 1, 1, 1, 1), "f32"), "has 5 dimensions"),
    (((4, 0), "f32"), "lengths must be 1 or more"),
    (((4, -1), "f32"), "lengths must be 1 or more"),
    (((2**40, 2**40), "f32"), "at most 2"),
    (((1.5,), "f32"), "a sequence of 1 to 4 integers"),
    (((4,), "f33"), "no ggml type 'f33'; there are f32, f16"),
]


@pytest.mark.parametrize(("spec", "words"), SPECS, ids=[words for _, words in SPECS])
def test_tensors_that_ggml_cannot_hold_are_refused(spec: Any, words: str) -> None:
    with pytest.raises(gg.ShapeError, match=words):
        gg.Buffer(cpu(), {"a": spec})


def test_memory_that_is_not_there_is_an_error_with_the_bytes() -> None:
    with pytest.raises(gg.AllocationError, match=rf"cpu: no {2**55} bytes; \d+ are free"):
        gg.Buffer(cpu(), {"a": ((2**53,), "f32")})


def test_many_tensors_lie_apart() -> None:
    with gg.Buffer(cpu(), {f"t{i}": ((i % 7 + 1,), "f32") for i in range(200)}) as buffer:
        for i in range(200):
            buffer[f"t{i}"].set(np.full(i % 7 + 1, i, np.float32))
        assert all((buffer[f"t{i}"].numpy() == i).all() for i in range(200))


def aligned(n_bytes: int) -> np.ndarray:
    memory = np.zeros(n_bytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + n_bytes]


F32 = gg.dtype("f32")


def test_memory_that_exists_is_used_in_place() -> None:
    memory = aligned(256)
    memory[64:128] = np.arange(16, dtype=np.float32).view(np.uint8)
    with gg.Buffer.from_memory(cpu(), memory, {"w": ((4, 4), F32, 64)}) as buffer:
        assert buffer.n_bytes == 0
        np.testing.assert_array_equal(buffer["w"].numpy(), np.arange(16).reshape(4, 4))
        memory[64:68] = np.float32([7]).view(np.uint8)
        assert buffer["w"].numpy()[0, 0] == 7


@pytest.mark.parametrize("offset", [4, -64, 256, 224])
def test_offsets_must_be_aligned_and_inside(offset: int) -> None:
    with pytest.raises(gg.ShapeError, match=f"w: 64 bytes at {offset} must begin at a multiple of"):
        gg.Buffer.from_memory(cpu(), aligned(256), {"w": ((4, 4), F32, offset)})


def test_memory_must_be_aligned_and_contiguous() -> None:
    with pytest.raises(gg.ShapeError, match="does not begin at a multiple of"):
        gg.Buffer.from_memory(cpu(), aligned(256)[1:], {"w": ((4, 4), F32, 0)})
    with pytest.raises(gg.ShapeError, match="not contiguous"):
        gg.Buffer.from_memory(cpu(), aligned(256)[::2], {"w": ((4, 4), F32, 0)})


WRITES = [
    lambda w, g: w.set(np.ones((4, 4), np.float32)),
    lambda w, g: w.zero(start_row=0, n_rows=1),
    lambda w, g: w.owner.clear(),
    lambda w, g: gg.copy(g.input("x", (4, 4)), w),
    lambda w, g: gg.copy(g.input("x", (2, 4)), g.use(w)[:2]),
    lambda w, g: gg.set_rows(w, g.input("x", (1, 4)), g.input("i", (1,), "i32")),
    lambda w, g: g.use(w)[:2].set(np.ones((2, 4), np.float32)),
]


@pytest.mark.parametrize("write", WRITES)
def test_borrowed_memory_is_never_written(write: Any) -> None:
    memory = aligned(64)
    memory.flags.writeable = False
    with gg.Buffer.from_memory(cpu(), memory, {"w": ((4, 4), F32, 0)}) as buffer, gg.Graph(cpu()) as g:
        with pytest.raises(gg.ShapeError, match=r"only read|weight"):
            write(buffer["w"], g)


def repacked(shape: tuple[int, ...] = (64, 256), kind: str = "q4_0") -> gg.Buffer:
    """A weight in a layout of the CPU's own, where this CPU has one for it."""
    extra = [
        t
        for t in cpu().buffer_types()[:-1]
        if cpu().first_that_multiplies([t], (64, 256), gg.dtype("q4_0"), experts=False) == 0
    ]
    if not extra:
        pytest.skip("this CPU has no layout of its own for q4_0")
    return gg.Buffer(cpu(), {"w": (shape, kind)}, buffer_type=extra[0], weights=True)


def test_weights_in_a_layout_of_their_own_multiply_as_plain_ones_do() -> None:
    w, x = random(64, 256), random(5, 256, seed=1)
    with repacked() as buffer, gg.Graph(cpu()) as g:
        buffer["w"].set(w)
        g.output("y", gg.mul_mat(buffer["w"], g.input("x", x.shape)))
        right = x @ stored(w, "q4_0").T
        assert np.linalg.norm(g.run(x=x)["y"] - right) < 0.01 * np.linalg.norm(right)


LAYOUT_USES = [
    lambda w, g: w.numpy(),
    lambda w, g: w.set(np.ones(18, np.uint8)),
    lambda w, g: w.zero(start_row=0, n_rows=1),
    lambda w, g: g.use(w)[:2],
    lambda w, g: g.use(w).reshape(-1, 512),
    lambda w, g: g.use(w).cont(),
    lambda w, g: g.use(w).cast("f32"),
    lambda w, g: gg.concat(g.use(w), g.use(w), 0),
]


@pytest.mark.parametrize("use", LAYOUT_USES)
def test_weights_in_a_layout_of_their_own_do_nothing_else(use: Any) -> None:
    with (
        repacked() as buffer,
        gg.Graph(cpu()) as g,
        pytest.raises(gg.ShapeError, match="layout|takes tensors whole"),
    ):
        use(buffer["w"], g)


def test_rows_of_a_weight_in_a_layout_of_its_own_are_refused_by_the_device() -> None:
    with repacked() as buffer, gg.Graph(cpu()) as g:
        g.output("y", gg.get_rows(buffer["w"], g.input("ids", (1,), "i32")))
        with pytest.raises(gg.ComputeError, match="cpu cannot compute GET_ROWS"):
            g.build()


def test_layouts_refuse_what_they_cannot_hold() -> None:
    with pytest.raises(gg.DeviceError, match=r"w: this buffer type does not take f32 of shape \(64, 256\)"):
        repacked(kind="f32")


def test_closing_twice_is_allowed_and_every_use_after_is_an_error() -> None:
    buffer = gg.Buffer(cpu(), {"a": ((4, 8), "f32")})
    a = buffer["a"]
    buffer.close()
    buffer.close()
    assert buffer.closed
    assert repr(a) == "Tensor(closed)"
    uses = [
        lambda: buffer["a"],
        buffer.clear,
        lambda: buffer.n_bytes,
        lambda: a.shape,
        lambda: a.name,
        lambda: a.dtype,
        lambda: a.n_bytes,
        a.numpy,
        lambda: a.set(np.ones((4, 8), np.float32)),
        lambda: a.zero(start_row=0, n_rows=1),
    ]
    for use in uses:
        with pytest.raises(gg.ClosedError):
            use()


def test_a_backend_that_is_closed_gives_no_memory() -> None:
    backend = gg.Backend("cpu", threads=1)
    backend.close()
    for make in (lambda: gg.Buffer(backend, {}), lambda: gg.Allocator(backend), lambda: gg.Graph(backend)):
        with pytest.raises(gg.ClosedError, match="backend cpu is closed"):
            make()


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0", "q4_0"])
def test_rows_copied_are_the_same_bytes_and_others_stay(kind: str) -> None:
    with gg.Buffer(cpu(), {"k": ((12, 64), kind), "v": ((12, 64), kind)}) as buffer:
        for name in buffer:
            buffer[name].set(random(12, 64))
        before = {name: buffer[name].read_rows(0, 12).reshape(12, -1) for name in buffer}
        buffer.copy_rows(["k", "v"], start=1, to=7, n_rows=4)
        for name in buffer:
            expected = before[name].copy()
            expected[7:11] = before[name][1:5]
            np.testing.assert_array_equal(buffer[name].read_rows(0, 12).reshape(12, -1), expected)


BAD_COPIES = [(0, 3, 4), (5, 4, 2), (9, 0, 4), (0, 9, 4), (-1, 5, 2), (0, 5, -1)]


@pytest.mark.parametrize(("start", "to", "n_rows"), BAD_COPIES)
def test_rows_that_overlap_or_are_not_there_are_not_copied(start: int, to: int, n_rows: int) -> None:
    with gg.Buffer(cpu(), {"k": ((12, 64), "f16")}) as buffer, pytest.raises(gg.ShapeError):
        buffer.copy_rows(["k"], start=start, to=to, n_rows=n_rows)


def test_rows_read_are_what_set_takes() -> None:
    with gg.Buffer(cpu(), {"a": ((6, 32), "q8_0"), "b": ((6, 32), "q8_0")}) as buffer:
        buffer["a"].set(random(6, 32))
        buffer["b"].set(random(6, 32))
        raw = buffer["a"].read_rows(2, 3)
        buffer["b"].set(raw, offset=2 * buffer["b"].strides[0])
        np.testing.assert_array_equal(buffer["b"].numpy()[2:5], buffer["a"].numpy()[2:5])
        with pytest.raises(gg.ShapeError, match="outside"):
            buffer["a"].read_rows(4, 3)


def test_the_words_of_a_failed_call_are_for_the_thread_that_made_it() -> None:
    buffer_type = cpu().buffer_types()[-1]
    words: list[str] = []

    def fail() -> None:
        lib.ggml_backend_buft_alloc_buffer(buffer_type, 2**60)
        has_failed.set()
        assert was_read.wait(60)
        words.append(last_native_error())

    has_failed, was_read = threading.Event(), threading.Event()
    last_native_error()
    thread = threading.Thread(target=fail)
    thread.start()
    assert has_failed.wait(60)
    words.append(last_native_error())
    was_read.set()
    thread.join(60)
    assert words[0] == "" and "failed to allocate" in words[1]
