"""The end of backends, buffers, allocators and graphs: no use after it crashes, nothing keeps memory by accident."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyggml as gg


def doubled(backend: gg.Backend, **options: Any) -> tuple[gg.Graph, gg.Tensor]:
    """A graph that doubles its input x, and the node."""
    g = gg.Graph(backend, **options)
    return g, g.output("y", g.input("x", (4,)) * 2)


def backend() -> gg.Backend:
    return gg.Backend("cpu", threads=1)


X = np.ones(4)
GRAPH_USES: dict[str, Callable[[gg.Graph, gg.Tensor], object]] = {
    "run": lambda g, y: g.run(x=X),
    "step": lambda g, y: g.step(),
    "start": lambda g, y: g.start(x=X),
    "wait": lambda g, y: g.wait(),
    "build": lambda g, y: g.build(),
    "reserve": lambda g, y: g.reserve(),
    "input": lambda g, y: g.input("z", (1,)),
    "phantom": lambda g, y: g.phantom("z", (1,), "f32"),
    "weight": lambda g, y: g.weight(X),
    "state": lambda g, y: g.state("s", (1,)),
    "constant": lambda g, y: g.constant(1.0),
    "output": lambda g, y: g.output("z", y),
    "do": lambda g, y: g.do(y),
    "use": lambda g, y: g.use(y),
    "n_nodes": lambda g, y: g.n_nodes,
    "arithmetic": lambda g, y: y + 1,
    "supports": lambda g, y: g.backend.supports(y),
    "numpy": lambda g, y: y.numpy(),
    "set": lambda g, y: y.set(X),
    "check_feeds": lambda g, y: g.check_feeds(),
}


@pytest.mark.parametrize("is_built", [False, True])
@pytest.mark.parametrize("use", GRAPH_USES)
def test_a_closed_graph_raises(use: str, is_built: bool) -> None:
    with backend() as be:
        g, y = doubled(be)
        if is_built:
            g.run(x=X)
        g.close()
        g.close()
        assert g.closed
        with pytest.raises(gg.ClosedError, match="closed"):
            GRAPH_USES[use](g, y)


WAYS_TO_LOSE = ["backend", "allocator", "buffer", "other graph"]


@pytest.mark.parametrize("is_built", [False, True])
@pytest.mark.parametrize("way", WAYS_TO_LOSE)
@pytest.mark.parametrize("use", [u for u in GRAPH_USES if u != "supports"])
def test_a_graph_of_which_something_was_closed_raises(use: str, way: str, is_built: bool) -> None:
    be, other = backend(), backend()
    allocator, buffer, lender = gg.Allocator(be), gg.Buffer(be, {"w": ((4,), "f32")}), gg.Graph(be)
    buffer.clear()
    g = gg.Graph(be, allocator=allocator)
    y = g.output("y", g.input("x", (4,)) + buffer["w"] + g.use(lender.weight(X)))
    if is_built:
        assert g.run(x=X)["y"].tolist() == [2] * 4
    {"backend": be, "allocator": allocator, "buffer": buffer, "other graph": lender}[way].close()
    with pytest.raises(
        gg.ClosedError, match=rf"the {way.split()[0]}.* that this graph uses is closed|closed"
    ):
        GRAPH_USES[use](g, y)
    for thing in (g, allocator, buffer, lender, be, other):
        thing.close()


def test_the_message_names_what_was_closed() -> None:
    with backend() as be:
        buffer = gg.Buffer(be, {"w": ((4,), "f32")})
        g = gg.Graph(be)
        g.output("y", g.input("x", (4,)) + buffer["w"])
        buffer.close()
        with pytest.raises(gg.ClosedError, match="the buffer that this graph uses is closed"):
            g.run(x=X)
        g.close()


BACKEND_USES: dict[str, Callable[[gg.Backend], object]] = {
    "handle": lambda be: be.handle,
    "synchronize": lambda be: be.synchronize(),
    "buffer_types": lambda be: be.buffer_types(),
    "weight_buffer_type": lambda be: be.weight_buffer_type((32, 32), gg.dtype("q8_0")),
    "weight_bytes": lambda be: be.weight_bytes((32, 32), gg.dtype("q8_0")),
    "Graph": gg.Graph,
    "Allocator": gg.Allocator,
    "Buffer": lambda be: gg.Buffer(be, {"a": ((1,), "f32")}),
}


@pytest.mark.parametrize("use", BACKEND_USES)
def test_a_closed_backend_raises(use: str) -> None:
    be = backend()
    be.close()
    be.close()
    assert be.closed
    assert repr(be) == "Backend('cpu', closed)"
    with pytest.raises(gg.ClosedError, match="backend cpu is closed"):
        BACKEND_USES[use](be)


def test_a_closed_allocator_raises() -> None:
    with backend() as be:
        allocator = gg.Allocator(be)
        allocator.close()
        allocator.close()
        with pytest.raises(gg.ClosedError, match="this allocator is closed"):
            allocator.n_bytes  # noqa: B018
        with pytest.raises(gg.ClosedError, match="this allocator is closed"):
            gg.Graph(be, allocator=allocator)


def test_everything_is_a_context_manager() -> None:
    with backend() as be, gg.Allocator(be) as a, gg.Buffer(be, {}) as b, gg.Graph(be, allocator=a) as g:
        things = (be, a, b, g)
        assert not any(t.closed for t in things)
    assert all(t.closed for t in things)


def test_what_is_dropped_is_freed_at_once() -> None:
    """As in a notebook whose cell is run again; nothing here waits for the garbage collector."""
    be = backend()
    gc.disable()
    try:
        g, y = doubled(be)
        g.weight(X)
        g.run(x=X)
        buffer = gg.Buffer(be, {"w": ((4,), "f32")})
        tensor = buffer["w"]
        gone = [weakref.ref(t) for t in (g, buffer, be)]
        freed: list[str] = []
        for thing in (g, buffer, be):
            weakref.finalize(thing, freed.append, type(thing).__name__)
        del g, y, buffer, tensor, thing
        assert freed == ["Graph", "Buffer"]
        del be
        assert freed == ["Graph", "Buffer", "Backend"]
        assert not any(ref() for ref in gone)
    finally:
        gc.enable()


def test_a_tensor_keeps_its_owner_alive() -> None:
    be = backend()
    tensor = gg.Buffer(be, {"w": ((4,), "f32")})["w"]
    tensor.set(X)
    _, y = doubled(be)
    gc.collect()
    assert tensor.numpy().tolist() == [1] * 4
    assert y.graph is not None
    assert y.graph.run(x=X)["y"].tolist() == [2] * 4


def test_a_graph_keeps_the_buffers_that_it_uses_alive() -> None:
    be = backend()
    g = gg.Graph(be)
    buffer = gg.Buffer(be, {"w": ((4,), "f32")})
    buffer["w"].set(X)
    g.output("y", g.input("x", (4,)) + buffer["w"])
    del buffer
    gc.collect()
    assert g.run(x=X)["y"].tolist() == [2] * 4


def test_closing_an_object_does_not_wait_for_a_run_elsewhere() -> None:
    with backend() as be, be.lock:
        thread = threading.Thread(target=lambda: gg.Buffer(backend(), {"w": ((4,), "f32")}).close())
        thread.start()
        thread.join(10)
        assert not thread.is_alive()


def test_what_is_dropped_while_its_backend_runs_is_freed_by_the_next_one_to_run() -> None:
    be = backend()
    buffers = [gg.Buffer(be, {"w": ((4,), "f32")})]
    freed: list[bool] = []
    buffers[0]._release = lambda: freed.append(True)  # type: ignore[method-assign]
    with be.lock:
        thread = threading.Thread(target=buffers.clear)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
        assert not freed
    with be.lock:
        assert freed


CYCLES = """
import contextlib, gc, numpy as np, pyggml as gg
refused = contextlib.suppress(gg.ShapeError)
class Holder: pass
def cycle():
    holder = Holder()
    holder.me = holder
    holder.backend = gg.Backend("cpu", threads=1)
    holder.buffer = gg.Buffer(holder.backend, {"w": ((1000,), "f32")})
    holder.graph = gg.Graph(holder.backend)
    holder.y = holder.graph.output("y", holder.graph.input("x", (1000,)) + holder.buffer["w"])
    holder.graph.build()
    return holder
"""

ENDS = {
    "collected in any order": "for _ in range(20): cycle()\ngc.collect()",
    "alive at exit": "kept = cycle()",
    "in a cycle at exit": "gc.disable(); cycle()",
    "started at exit": "kept = cycle(); kept.graph.start(x=np.ones(1000))",
    "dropped when started": "kept = cycle(); kept.graph.start(x=np.ones(1000)); kept.__dict__.clear(); gc.collect()",
    "closed backend first": "kept = cycle(); kept.backend.close(); kept.buffer.close(); kept.graph.close()",
    "closed graph last": "kept = cycle(); kept.buffer.close(); kept.backend.close(); kept.graph.close()",
    "half made buffer": "with refused: gg.Buffer(gg.Backend('cpu', threads=1), {'a': ((3,), 'q8_0')})",
    "half made graph": "with refused: gg.Graph(gg.Backend('cpu', threads=1), max_nodes=0)",
}


@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_the_interpreter_is_quiet(end: str) -> None:
    child = subprocess.run(
        [sys.executable, "-X", "dev", "-c", CYCLES + ENDS[end]], capture_output=True, text=True, check=False
    )
    assert (child.returncode, child.stderr) == (0, "")


INTERRUPTED = Path(__file__).with_name("interrupted_run.py")


@pytest.mark.parametrize("moment", ["run", "idle", "own handler"])
def test_ctrl_c_ends_a_run_and_leaves_the_graph_usable(moment: str) -> None:
    child = subprocess.run(
        [sys.executable, str(INTERRUPTED), moment], capture_output=True, text=True, check=False, timeout=100
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines()[-1] == "usable"


def test_two_backends_run_at_the_same_time_in_two_threads() -> None:
    """Each thread is in its run while the other is: neither holds what the other needs."""
    met = threading.Barrier(2, timeout=60)
    totals: list[float] = []

    def work(n: int) -> None:
        with backend() as be, gg.Graph(be) as g:
            x = g.input("x", (200, 200))
            w = g.weight(np.eye(200) * n)
            for _ in range(20):
                x = x @ w.T
            g.output("y", x)
            met.wait()
            for _ in range(10):
                totals.append(float(g.run(x=np.ones((200, 200)))["y"][0, 0]) == float(n) ** 20)
            met.wait()

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert totals == [True] * 20


def test_threads_that_share_a_backend_take_turns() -> None:
    wrong: list[object] = []
    with backend() as be:

        def work(n: int) -> None:
            with gg.Graph(be) as g:
                g.output("y", gg.sum_rows(g.input("x", (1000,)) * n))
                for _ in range(200):
                    if g.run(x=np.ones(1000))["y"] != 1000 * n:
                        wrong.append(n)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_closing_waits_for_a_run_in_another_thread() -> None:
    results: list[object] = []
    be = backend()
    g = gg.Graph(be)
    x = g.input("x", (300, 300))
    w = g.weight(np.eye(300))
    for _ in range(100):
        x = x @ w.T
    g.output("y", x)
    g.build()
    began = threading.Event()

    def work() -> None:
        try:
            for _ in range(1000):
                began.set()
                results.append(float(g.run(x=np.ones((300, 300)))["y"][0, 0]))
        except gg.ClosedError as error:
            results.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    began.wait(60)
    be.close()
    thread.join(60)
    g.close()
    assert isinstance(results[-1], gg.ClosedError)
    assert all(r == 1.0 for r in results[:-1])
