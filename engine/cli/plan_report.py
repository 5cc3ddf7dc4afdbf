"""What `pyggml plan` found, as lines for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, groupby
from typing import Any

import pyggml as gg

from ..cuts import Degree
from ..demand import ModelFacts, layer_sizes
from ..outlook import Outlook
from ..placement import Placements
from ..prediction import Mode, Prediction, advice
from ..replica_plan import ReplicaPlan
from ..topology import CLASSES, Seat, between, seat
from .table import render
from .terminal import one_line, printable
from .units import shown_bytes, shown_fine_seconds


@dataclass
class PlanReport:
    """`placed` is None where what was asked for does not fit; `refusal` then says why.

    Of several replicas `outlooks` has one for each, and `replicas` takes the place of `placed`.
    """

    name: str
    path: str
    facts: ModelFacts
    n_prompt: int
    outlooks: Sequence[Outlook]
    degrees: Sequence[Degree]
    devices: Sequence[gg.Device]
    options: str = ""
    placed: Placements | None = None
    notes: tuple[str, ...] = ()
    refusal: str = ""
    n_replicas: int = 1
    replicas: ReplicaPlan | None = None

    def lines(self) -> Iterator[str]:
        """Everything, for people."""
        sizes, first, last = layer_sizes(self.facts)
        total = shown_bytes(sum(sizes) + first + (0 if self.facts.is_tied else last))
        yield f"{one_line(self.name)}: {self.facts.hp.arch}, {self.facts.hp.n_layer} layers, {total} of weights"
        yield ""
        yield from self._pair_lines()
        yield from self._degree_lines()
        yield self._table()
        yield ""
        yield from self._link_lines()
        if self.placed is not None:
            yield from (printable(line) for line in self.notes)
            yield printable(str(self.placed))
        yield from self._replica_lines()
        yield self.advice

    def _replica_lines(self) -> Iterator[str]:
        """Where each replica would lie, and why."""
        if self.replicas is None:
            return
        for number, (arranged, placed) in enumerate(zip(self.replicas.replicas, self.replicas.placements)):
            yield f"replica {number}: {printable('; '.join((arranged.deal.title, *arranged.notes)))}"
            yield printable(str(placed))

    @property
    def advice(self) -> str:
        """Which options to take, from the predictions."""
        if self.n_replicas > 1:
            n_ctx = "" if self.replicas is None else f" of {self.replicas.n_ctx} tokens"
            return f"{self.n_replicas} replicas answer beside each other; a request{n_ctx} is one replica's alone"
        fitting = {_key(o): o.prediction for o in self.outlooks if o.is_fitting and o.prediction is not None}
        found = advice(fitting)
        n = len({d.bus_id for d in self.devices if d.kind == "gpu"})
        if n > 1 and "" in fitting:
            found += f"; for many requests --dp {n}, a copy on each GPU, needs no links"
        return found

    def _pair_lines(self) -> Iterator[str]:
        pairs = self._pairs()
        for pair in pairs:
            way = f"{pair['class']} ({CLASSES[pair['class']]})"
            nodes = f", NUMA nodes {pair['nodes']}" if pair["nodes"] else ""
            yield f"{pair['first']} and {pair['second']}: by PCIe {way}{nodes}"
        if pairs:
            yield ""

    def _pairs(self) -> list[dict[str, str]]:
        seats = [(d.name, seat(d.bus_id)) for d in self.devices]
        return [
            {"first": a, "second": b, "class": between(x, y), "nodes": _nodes(x, y)}
            for (a, x), (b, y) in combinations(seats, 2)
            if between(x, y)
        ]

    def _degree_lines(self) -> Iterator[str]:
        """The degrees that work, each with the fullest rank's part over an even one, then why the others do not."""
        several = self.degrees[1:]
        works = [f"{d.n_ranks} (x {d.fullest:.2f})" for d in several if not d.obstacle]
        yield f"--tp can be (x how much the fullest rank has of an even part): {', '.join(works) or 'none'}"
        for obstacle, alike in groupby(several, lambda d: d.obstacle):
            if obstacle:
                yield f"  not {', '.join(str(d.n_ranks) for d in alike)}: {obstacle}"
        yield ""

    def _table(self) -> str:
        header = ("options", "fullest device", "context", "at most", "a token", f"prompt of {self.n_prompt}", "")
        rows = [(self._title(number, o), *self._row(o)[1:]) for number, o in enumerate(self.outlooks)]
        return render(rows, header=header, right=(1, 2, 3, 4, 5))

    def _link_lines(self) -> Iterator[str]:
        """Of each way whose links were measured the time of a sum over its ranks, and of copies to the next one."""
        found = [(self._title(n, o), o.links) for n, o in enumerate(self.outlooks) if o.links and o.links.reduce]
        if not found:
            return
        sizes = sorted({n_bytes for _, links in found for n_bytes, _ in links.reduce})
        rows = []
        for title, links in found:
            sums, (n_bytes, seconds) = dict(links.reduce), links.copy[-1]
            rate = f"{n_bytes / seconds / 1e9:.1f} GB/s"
            rows.append((title, *(_seconds(sums.get(n)) for n in sizes), shown_fine_seconds(links.copy[0][1]), rate))
        small, large = (shown_bytes(found[0][1].copy[at][0]) for at in (0, -1))
        sums_of = (f"sum of {shown_bytes(n)}" for n in sizes)
        header = ("between ranks", *sums_of, f"copy of {small}", f"copies of {large}")
        yield render(rows, header=header, right=range(1, len(header)))
        yield ""

    def _title(self, number: int, o: Outlook) -> str:
        return f"replica {number}: {o.options.text}" if self.n_replicas > 1 else o.options.text

    def _row(self, o: Outlook) -> tuple[str, ...]:
        if o.placements is None:
            return (o.options.text, "", "", "", "", "", f"not possible: {o.obstacle}")
        fullest = shown_bytes(max(placement.n_bytes for placement in o.placements))
        token_s, first_s = (None, None) if o.prediction is None else (o.prediction.token_s, o.prediction.first_token_s)
        state = "; ".join(
            [*([] if o.is_fitting else ["does not fit"]), *([f"not measured: {one_line(o.fault)}"] if o.fault else [])]
        )
        return (
            o.options.text, fullest, str(o.n_ctx or ""), str(o.largest_ctx or ""), _seconds(token_s), _seconds(first_s),
            state,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "model": self.name,
            "path": self.path,
            "devices": [_device(d, self.outlooks) for d in self.devices],
            "pairs": self._pairs(),
            "degrees": [asdict(degree) for degree in self.degrees],
            "modes": [_mode(o) for o in self.outlooks],
            "options": self.options,
            "placement": None if self.placed is None else self.placed.to_dict(),
            "replicas": [] if self.replicas is None else _replicas(self.replicas),
            "notes": list(self.notes),
            "advice": self.advice,
            "refusal": self.refusal or None,
        }


def _replicas(plan: ReplicaPlan) -> list[dict[str, Any]]:
    return [
        {
            "options": options.text,
            "notes": [arranged.deal.title, *arranged.notes],
            "placement": placed.to_dict(),
        }
        for options, arranged, placed in zip(plan.options, plan.replicas, plan.placements)
    ]


def _key(o: Outlook) -> str:
    return "" if o.prediction is not None and o.prediction.mode is Mode.ONE else o.options.text


def _nodes(a: Seat | None, b: Seat | None) -> str:
    """`0 and 1`, or nothing where they are unknown."""
    numbers = [None if at is None else at.numa_node for at in (a, b)]
    return "" if None in numbers else " and ".join(map(str, numbers))


def _seconds(s: float | None) -> str:
    return "" if s is None else shown_fine_seconds(s)


def _device(device: gg.Device, outlooks: Sequence[Outlook]) -> dict[str, Any]:
    facts = next(d for o in outlooks for d in o.devices if d.name == device.name)
    return {**asdict(facts), "bus_id": device.bus_id}


def _mode(o: Outlook) -> dict[str, Any]:
    prediction: Prediction | None = o.prediction
    return {
        "options": o.options.text,
        "obstacle": o.obstacle or None,
        "fits": o.is_fitting,
        "fault": o.fault or None,
        "n_ctx": o.n_ctx,
        "largest_ctx": o.largest_ctx,
        "token_s": None if prediction is None else prediction.token_s,
        "link_s": None if prediction is None else prediction.link_s,
        "first_token_s": None if prediction is None else prediction.first_token_s,
        "links": None if o.links is None else asdict(o.links),
        "placement": None if o.placements is None else o.placements.to_dict(),
    }
