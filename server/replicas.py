"""All engines of a server: which one gets a request, and what becomes of the server when one of them ends.

A request goes where least would have to be done until it is answered: what is still to do there, and of its own prompt
what the replica is not known to hold. So an idle replica that has its beginning gets it, and one that has much to do
does not. Replicas with a free slot come first. One that ends is taken out with its requests, and the others go on.
Event loop's thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from .answer import Answer
from .engine_link import EngineLink, State
from .errors import ApiError, StartError, Unavailable
from .held_prefixes import (
    BLOCK_TOKENS,
    BYTES_PER_TOKEN,
    Blocks,
    HeldPrefixes,
    blocks_of,
    n_tokens,
    prompt_bytes,
)
from .messages import Embed, Generate, Load, Message
from .replica_facts import joined_facts, place_of
from .spread import SpreadAnswer, dealt

LOG = logging.getLogger("pyggml.server")
# A token of an answer takes about as long as so many of a prompt, and an answer has about so many.
PROMPT_TOKENS_EACH = 4
USUAL_TOKENS = 128


def _n_each(asked: Generate) -> int:
    """About how much an answer to a request takes, in tokens of a prompt."""
    return PROMPT_TOKENS_EACH * min(asked.sampling.get("max_tokens") or USUAL_TOKENS, USUAL_TOKENS)


class Replica:
    """One engine, what it is known to hold, and how many requests it was given."""

    def __init__(self, number: int, link: EngineLink) -> None:
        self.number, self.link = number, link
        self.held = HeldPrefixes()
        self.n_routed = self.n_by_prefix = 0

    @property
    def n_slots(self) -> int:
        """Answers that it makes together."""
        n_slots: int = self.link.facts.get("n_slots", 1)
        return n_slots

    @property
    def trouble(self) -> str:
        """Why it answers nothing now, or seems not to; empty where it does."""
        link, name = self.link, f"replica {self.number}"
        if link.state is State.READY:
            return f"{name} {link.stuck}" if link.stuck else ""
        if link.state is State.LOADING:
            before = f"; before, {link.reason}" if link.reason else ""
            return f"{name} is loading ({100 * link.progress:.0f} %){before}"
        how = {State.OUT: "stays out", State.STOPPED: "stops"}.get(link.state, "will be started again")
        return f"{name} {how}: {link.reason}"


class Replicas:
    """The engines as one. `on_ready` hears the facts of all once each is ready or out, and of an only one again.

    `facts` are those of the model and where it lies on every replica.
    """

    def __init__(
        self, loads: Sequence[Load], *, restarts: bool, on_ready: Callable[[dict[str, Any]], None]
    ) -> None:
        self._on_ready = on_ready
        self._restarts = restarts
        self._is_told = False
        self.is_one = len(loads) == 1
        self.all = [Replica(i, self._link(i, load, restarts)) for i, load in enumerate(loads)]
        self._uses_prefixes = not self.is_one and bool(loads[0].options.get("prefix_cache", True))
        self._n_routed = 0
        self._last_routed = [0] * len(loads)
        self.facts: dict[str, Any] = {}

    def _link(self, number: int, load: Load, restarts: bool) -> EngineLink:
        name = "" if self.is_one else f"replica {number}"
        return EngineLink(load, restarts=restarts, on_ready=lambda facts: self._has_begun(number), name=name)

    async def run(self) -> None:
        """Keep all engines running until `stop`.

        Raises StartError where one cannot start, none is left, or one ended and none is to be started again.
        """
        tasks = [asyncio.ensure_future(self._keep(replica)) for replica in self.all]
        try:
            await asyncio.gather(*tasks)
        except Exception:
            self.stop()
            await asyncio.wait(tasks)
            raise

    async def _keep(self, replica: Replica) -> None:
        try:
            await replica.link.run()
        except StartError as error:
            is_mistake = error.status != 1
            if self.is_one or is_mistake or not self._restarts:
                raise
            LOG.error("%s; it stays out", error)
            if all(other.link.state is State.OUT for other in self.all):
                raise StartError(f"no replica is left; {self.reason}", status=1) from error
            self._tell()

    def _has_begun(self, number: int) -> None:
        replica = self.all[number]
        replica.held.clear()
        facts = [other.link.facts for other in self.all]
        self.facts = facts[0] if self.is_one else joined_facts(facts)
        if self._is_told and not self.is_one:
            LOG.info("replica %d answers again: %s", number, place_of(replica.link.facts))
        else:
            self._tell()

    def _tell(self) -> None:
        """Tell of the start once every replica is ready or out."""
        is_settled = all(replica.link.state in (State.READY, State.OUT) for replica in self.all)
        if is_settled and self.facts and (self.is_one or not self._is_told):
            self._is_told = True
            self._on_ready(self.facts)

    @property
    def ready(self) -> list[Replica]:
        """Those that answer."""
        return [replica for replica in self.all if replica.link.state is State.READY]

    @property
    def _able(self) -> list[Replica]:
        """Those that can begin an answer now; where all build their ranks again or hang, all that are ready."""
        ready = self.ready
        return [replica for replica in ready if not (replica.link.is_rebuilding or replica.link.stuck)] or ready

    @property
    def state(self) -> State:
        """READY while one is; the state of an only one."""
        states = [replica.link.state for replica in self.all]
        order = (State.READY, State.LOADING, State.BROKEN, State.OUT, State.STOPPED)
        return next(state for state in order if state in states)

    @property
    def reason(self) -> str:
        """Why not all of them answer; why an only one is broken."""
        if self.is_one:
            link = self.all[0].link
            return link.reason or (f"the engine {link.stuck}" if link.stuck else "")
        return "; ".join(replica.trouble for replica in self.all if replica.trouble)

    @property
    def progress(self) -> float:
        """The part of the weights that has been loaded."""
        return sum(replica.link.progress for replica in self.all) / len(self.all)

    @property
    def n_restarts(self) -> int:
        """Times that an engine was started again."""
        return sum(replica.link.n_restarts for replica in self.all)

    @property
    def n_slots(self) -> int:
        """Answers that are made together by those that answer."""
        return sum(replica.n_slots for replica in self.ready)

    @property
    def n_open(self) -> int:
        """Requests that are being answered."""
        return sum(replica.link.n_open for replica in self.all)

    def unavailable(self) -> Unavailable:
        """Why no request can be taken now."""
        if self.is_one or self.state is State.LOADING:
            return next(r.link.unavailable() for r in self.all if self.is_one or r.link.state is State.LOADING)
        return Unavailable(self.reason or "the server stops", code="engine_unavailable", retry_after_s=5)

    def generate(self, asked: Generate) -> Answer:
        """Start an answer on the replica that is best for it, or each of several prompts on one with least to do.

        Raises Unavailable, BadRequest.
        """
        if self.is_one:
            return self._begin(self.all[0], asked, 0, ())
        able = self._able
        if not able:
            raise self.unavailable()
        if len(asked.prompts) > 1 and len(able) > 1:
            return self._spread(asked, able)
        data = prompt_bytes(asked)
        blocks = blocks_of(data) if self._uses_prefixes else ()
        known = [replica.held.n_common(blocks) if asked.cache_prompt else 0 for replica in able]
        n_unread = [len(data) // BYTES_PER_TOKEN - n * BLOCK_TOKENS for n in known]
        at = min(range(len(able)), key=lambda i: self._cost(able[i], n_unread[i]))
        answer = self._begin(able[at], asked, n_unread[at], blocks)
        able[at].n_by_prefix += known[at] > 0
        return answer

    def _begin(self, replica: Replica, asked: Generate, n_unread: int, blocks: Blocks) -> Answer:
        """Start an answer there, and note what the replica has to do and will hold."""
        answer = replica.link.generate(asked)
        answer.n_unread, answer.n_each = n_unread, _n_each(asked)
        self._n_routed += 1
        self._last_routed[replica.number] = self._n_routed
        replica.n_routed += 1
        if self._uses_prefixes:
            replica.held.hold(blocks, replica.n_slots)
        return answer

    def _spread(self, asked: Generate, able: Sequence[Replica]) -> Answer:
        sizes = [n_tokens(prompt) + asked.n * _n_each(asked) for prompt in asked.prompts]
        parts: dict[Answer, Sequence[int]] = {}
        try:
            for replica, numbers in zip(able, dealt(sizes, [replica.link.n_tokens_to_do for replica in able])):
                if numbers:
                    part = msgspec.structs.replace(asked, prompts=[asked.prompts[i] for i in numbers])
                    n_unread = sum(n_tokens(prompt) for prompt in part.prompts)
                    blocks = blocks_of(prompt_bytes(part)) if self._uses_prefixes else ()
                    parts[self._begin(replica, part, n_unread, blocks)] = numbers
        except ApiError:
            for answer in parts:
                answer.close()
            raise
        return SpreadAnswer(parts, asked.n)

    def _cost(self, replica: Replica, n_unread: int) -> tuple[bool, int, int, int]:
        """What decides between replicas, the least first: a free slot, what is to do, answers, who was chosen last."""
        link = replica.link
        is_full = link.n_answers >= replica.n_slots
        return is_full, link.n_tokens_to_do + n_unread, link.n_answers, self._last_routed[replica.number]

    async def call(self, make: Callable[[int], Message]) -> Any:
        """Send what `make` gives for a new id to the replica with least to do, and wait. Raises ApiError."""
        ready = self._able
        if not ready:
            raise self.unavailable()
        return await min(ready, key=lambda replica: self._cost(replica, 0)).link.call(make)

    async def embed(self, prompts: Sequence[str | list[int]]) -> tuple[list[bytes], int]:
        """The vector of each prompt as bytes, and the number of tokens that were read. Raises ApiError."""
        able = self._able
        if not able:
            raise self.unavailable()
        vectors, n_read = [b""] * len(prompts), 0
        parts = dealt([n_tokens(prompt) for prompt in prompts], [replica.link.n_tokens_to_do for replica in able])

        async def of_part(replica: Replica, numbers: Sequence[int]) -> None:
            nonlocal n_read
            found, n = await replica.link.call(lambda id: Embed(id, [prompts[i] for i in numbers]))
            n_read += n
            for i, vector in zip(numbers, found):
                vectors[i] = vector

        tasks = [asyncio.ensure_future(of_part(*pair)) for pair in zip(able, parts) if pair[1]]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()  # what is left of a request that failed, or whose client has gone
        return vectors, n_read

    async def idle(self) -> None:
        """Wait until nothing is being answered."""
        await asyncio.gather(*(replica.link.idle() for replica in self.all))

    def stop(self) -> None:
        """End all processes; open requests end with an error."""
        for replica in self.all:
            replica.link.stop()
