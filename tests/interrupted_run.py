"""A process that gets SIGINT during a long run; run by test_lifetime.py with the moment as argument."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import numpy as np

import pyggml as gg


def interrupt_after(seconds: float) -> None:
    threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT)).start()


def long_graph(backend: gg.Backend, n_products: int) -> gg.Graph:
    g = gg.Graph(backend)
    x, w = g.input("x", (512, 512)), g.weight(np.eye(512))
    for _ in range(n_products):
        x = x @ w.T
    g.output("y", x)
    return g.build()


def main(moment: str) -> None:
    backend = gg.Backend("cpu", threads=1)
    x = np.ones((512, 512))
    graph = long_graph(backend, 20)
    began = time.perf_counter()
    graph.run(x=x)
    # A run of about 20 seconds, so that an interrupt after one second can only fall into it.
    seconds = time.perf_counter() - began
    graph = long_graph(backend, max(20, min(4000, int(20 * 20 / seconds))))
    handled: list[int] = []
    if moment == "own handler":
        signal.signal(signal.SIGINT, lambda number, frame: handled.append(number))
        graph = long_graph(backend, 200)
        interrupt_after(0.0)
        time.sleep(0.05)
        graph.run(x=x)
        assert handled == [signal.SIGINT]
    else:
        interrupt_after(1.0)
        began = time.perf_counter()
        try:
            if moment == "idle":
                time.sleep(20)
            else:
                while time.perf_counter() - began < 60:
                    graph.run(x=x)
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("no KeyboardInterrupt")
        assert time.perf_counter() - began < 15, "the run went on to its end"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler or handled
    small = long_graph(backend, 2)
    assert small.run(x=x)["y"][0, 0] == 1.0
    graph.close()
    print("usable")


if __name__ == "__main__":
    main(sys.argv[1])
