"""Choosing the next token of each sequence in a batch.

One `Sampler` belongs to one sequence and holds its random numbers and the tokens seen so far; `sample` serves a whole
batch with one native call. A sequence's choice depends on its own logits and sampler only, never on its neighbours:
the generator is Philox keyed by (seed, index of the choice) and gives one number a token.

Order, as in llama.cpp: bias, penalties, allowed tokens; then top-k, top-p, min-p, temperature, draw.
Reported log-probabilities are the model's own, at temperature 1 and before bias, penalties and bans; llama.cpp's
server and vLLM report the same.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyggml import NONE_LEFT, Candidates, mask_disallowed, top_candidates

from .choice import Knobs, choose_rows, row_error
from .constraint import Constraint
from .errors import GenerationError, RequestError
from .logits import Logits
from .sampling_params import SamplingParams
from .token_counts import TokenCounts

FloatRow = npt.NDArray[np.float32]

# With top-k off this many candidates are looked at before the whole vocabulary is sorted.
N_FIRST_LOOK = 1024
_MASK_64 = 2**64 - 1


class Sampled(NamedTuple):
    """One chosen token, or the error that ends its sequence (then id is -1).

    logprob and `top`, pairs of token and log-probability with the most likely first, are there if asked for; a token
    that the model gives no chance has minus infinity.
    """

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    error: GenerationError | None = None


class Sampler:
    """The random numbers, penalties and filters of one sequence.

    index tells apart the choices of one request (n > 1); prompt_ids feed the repeat penalty; banned ids are never
    chosen (say, end tokens under ignore_eos); `constraint` says which tokens its grammar allows. Not thread-safe.
    Raises: RequestError for a bias outside the vocabulary.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        n_vocab: int,
        prompt_ids: Sequence[int] = (),
        index: int = 0,
        banned: Collection[int] = (),
        constraint: Constraint | None = None,
    ) -> None:
        self.params = params
        self.constraint = constraint
        self.seed = secrets.randbits(63) if params.seed is None or params.seed == -1 else params.seed & _MASK_64
        self._random = np.random.Generator(np.random.Philox(key=np.array([self.seed, index], np.uint64)))
        self._n_vocab = n_vocab
        bias = dict(params.logit_bias) | dict.fromkeys(banned, -np.inf)
        self._banned = frozenset(token for token, value in bias.items() if value == -np.inf)
        self._only_bans = len(self._banned) == len(bias)
        for token in bias:
            if not 0 <= token < n_vocab:
                raise RequestError(f"logit_bias has token {token}; this model's ids go from 0 to {n_vocab - 1}")
        self._bias_ids = np.fromiter(bias.keys(), np.int64, len(bias))
        self._bias = np.fromiter(bias.values(), np.float32, len(bias))
        self._has_penalty = params.presence_penalty != 0 or params.frequency_penalty != 0
        self._answer = TokenCounts()
        self._has_repeat_penalty = params.repeat_penalty != 1 and params.repeat_last_n != 0
        self._window: deque[int] = deque()
        self._recent = TokenCounts()
        if self._has_repeat_penalty:
            start = 0 if params.repeat_last_n < 0 else max(0, len(prompt_ids) - params.repeat_last_n)
            for token in prompt_ids[start:]:
                self._remember(token)
        self.has_edits = bool(bias) or self._has_penalty or self._has_repeat_penalty
        self._top_k = params.top_k if 0 < params.top_k < n_vocab else 0
        self._is_greedy = params.is_greedy
        is_plain = self._is_greedy and params.logprobs is None
        self._takes_the_likeliest = is_plain and (not self.has_edits or self._has_only_bans)
        # How many candidates `choose` wants to see first.
        self.n_candidates = 1 if self._is_greedy else self._top_k or N_FIRST_LOOK

    def is_served_by(self, k: int) -> bool:
        """Whether the k best logits of a row and its log-sum-exp at scale 1 are enough, as the model made them."""
        return (
            (not self.has_edits or self._has_only_bans)
            and (self.constraint is None or not self.constraint.is_awake)
            and self.n_candidates + len(self._banned) <= k
            and (self.params.logprobs or 0) <= k
            and (self.scale == 0.0 or (self.scale == 1.0 and not self._banned))
        )

    @property
    def _has_only_bans(self) -> bool:
        return self._only_bans and not (self._has_penalty or self._has_repeat_penalty)

    @property
    def takes_the_likeliest(self) -> bool:
        """Whether the choice is the row's largest logit, with nothing to be told or remembered about it."""
        return self._takes_the_likeliest and self.constraint is None

    def allows(self, token: int) -> bool:
        """Whether a token is not banned."""
        return token not in self._banned

    def without_banned(self, best: Candidates, r: int) -> Candidates:
        """Row r of candidates without banned tokens, as rows of one."""
        found = int(best.found[r])
        kept = [i for i in range(max(found, 0)) if int(best.ids[r, i]) not in self._banned]
        n_found = found if found < 0 else len(kept) or NONE_LEFT
        return Candidates(
            best.ids[r : r + 1, kept],
            best.values[r : r + 1, kept],
            np.array([n_found], np.int32),
            best.logsumexp[r : r + 1],
        )

    def sees_all(self, n_found: int) -> bool:
        """Whether that many candidates are all that may be chosen."""
        return self._top_k > 0 or n_found < self.n_candidates or n_found == self._n_vocab

    @property
    def scale(self) -> float:
        """The factor on the logits at which `choose` needs the whole row's log-sum-exp; 0 if it does not."""
        if self._is_greedy or self._top_k:
            return 0.0
        if self.params.top_p < 1:
            return 1.0
        return 1.0 / self.params.temperature if self.params.min_p <= 0 else 0.0

    def edit(self, row: FloatRow) -> None:
        """Apply bias and penalties to one row of logits, in place."""
        params = self.params
        with np.errstate(invalid="ignore", over="ignore"):  # a broken row is noticed later
            if self._bias_ids.size:
                row[self._bias_ids] += self._bias
            if self._has_repeat_penalty:
                ids = self._recent.ids
                values = row[ids]
                row[ids] = np.where(values > 0, values / params.repeat_penalty, values * params.repeat_penalty)
            if self._has_penalty:
                row[self._answer.ids] -= params.frequency_penalty * self._answer.counts + params.presence_penalty

    def accept(self, token: int) -> None:
        """Take a token into the history that penalties look at, and on in the grammar.

        Raises: GenerationError for a token that the grammar does not allow.
        """
        if self.constraint is not None:
            self.constraint.accept(token)
        if self._has_penalty:
            self._answer.add(token)
        if self._has_repeat_penalty:
            self._remember(token)

    def draw(self) -> float:
        """The random number in [0, 1) for the next token; greedy sampling uses none."""
        return 0.0 if self._is_greedy else self._random.random()

    def knobs(self, n_found: int) -> Knobs:
        """What chooses among that many candidates, all there are; draws the number for the next token."""
        params, n_seen = self.params, min(n_found, self.n_candidates)
        if self._is_greedy:
            return Knobs(n_seen, 1.0, 0.0, 1.0, 0.0)
        return Knobs(n_seen, params.top_p, params.min_p, params.temperature, self._random.random())

    def choose(
        self, ids: npt.NDArray[np.int32], values: FloatRow, logsumexp: float, number: float, is_all: bool
    ) -> int | None:
        """The token that `number` falls on, or None when these candidates do not settle it.

        ids and values are the row's best, descending; is_all says that nothing else can be chosen. logsumexp is
        the row's at `scale`, used only when candidates are missing.
        """
        params = self.params
        if params.is_greedy:
            return int(ids[0])
        gaps = values.astype(np.float64)
        best = float(gaps[0])
        gaps -= best
        weights = np.exp(gaps)
        n_keep = n_seen = weights.size
        is_settled = is_all
        if params.top_p < 1:
            cumulative = weights.cumsum()
            total = cumulative[-1] if is_all else np.exp(logsumexp - best)
            n_nucleus = int(cumulative.searchsorted(params.top_p * total)) + 1
            is_settled |= n_nucleus <= n_seen
            n_keep = min(n_keep, n_nucleus)
        if params.min_p > 0:
            n_likely = int(np.count_nonzero(weights >= params.min_p))
            is_settled |= n_likely < n_seen
            n_keep = min(n_keep, n_likely)
        if not is_settled and (params.top_p < 1 or params.min_p > 0):
            return None
        weights = weights[:n_keep] if params.temperature == 1 else np.exp(gaps[:n_keep] / params.temperature)
        cumulative = weights.cumsum()
        total = cumulative[-1] if is_settled else np.exp(logsumexp - best / params.temperature)
        chosen = int(cumulative.searchsorted(number * total, side="right"))
        if chosen == n_keep and not is_settled:
            return None
        return int(ids[min(chosen, n_keep - 1)])

    def _remember(self, token: int) -> None:
        if not 0 <= token < self._n_vocab:
            return
        self._window.append(token)
        self._recent.add(token)
        if 0 <= self.params.repeat_last_n < len(self._window):
            self._recent.remove(self._window.popleft())


def sample(logits: FloatRow | Logits, samplers: Sequence[Sampler]) -> list[Sampled]:
    """Choose one token for each row and take it into its sampler's history; rows are edited in place.

    A row that cannot be used gives a Sampled with an error; the others are not concerned. Where the device has found
    what all samplers look at, the rows stay there.
    Shapes: logits [n_rows, n_vocab], samplers n_rows.
    """
    if all(sampler.takes_the_likeliest for sampler in samplers):
        likeliest = logits.greedy() if isinstance(logits, Logits) else likeliest_of(logits)
        if likeliest is not None and all(map(Sampler.allows, samplers, likeliest)):
            return [Sampled(token) for token in likeliest]
    if isinstance(logits, Logits):
        if all(sampler.is_served_by(logits.k) for sampler in samplers):
            settled = _settled(logits.best, samplers, with_banned=False)
            return [_sampled(logits, r, s, logits.best, token=settled.get(r)) for r, s in enumerate(samplers)]
        logits = logits.rows()
    untouched: dict[int, tuple[FloatRow, Candidates]] = {}
    failed: dict[int, GenerationError] = {}
    for r, sampler in enumerate(samplers):
        try:
            mask = None if sampler.constraint is None else sampler.constraint.mask()
        except GenerationError as error:
            failed[r] = error
            continue
        n_logprobs = sampler.params.logprobs
        has_edits = sampler.has_edits or mask is not None
        if n_logprobs is not None and (has_edits or sampler.scale not in (0.0, 1.0)):
            copy = logits[r].copy()
            untouched[r] = copy, top_candidates(copy[None], [max(1, n_logprobs)], scale=[1.0])
        if has_edits:
            sampler.edit(logits[r])
            if mask is not None:
                mask_disallowed(logits[r], mask)
    wanted = [sampler.n_candidates for sampler in samplers]
    scales = [sampler.scale for sampler in samplers]
    for r, sampler in enumerate(samplers):
        if sampler.params.logprobs is not None and r not in untouched:
            wanted[r] = max(wanted[r], sampler.params.logprobs)
            scales[r] = 1.0
    best = top_candidates(logits, wanted, scale=scales)
    settled = _settled(best, samplers, with_banned=True, failed=failed)
    return [
        Sampled(-1, error=failed[r])
        if r in failed
        else _sampled(logits, r, sampler, best, untouched.get(r), token=settled.get(r))
        for r, sampler in enumerate(samplers)
    ]


def likeliest_of(logits: FloatRow) -> list[int] | None:
    """The likeliest token of each row, of equal ones the first; None where a row has none or cannot be used."""
    tokens: list[int] = logits.argmax(axis=1).tolist()  # a NaN counts as the largest
    return tokens if np.isfinite(logits[range(len(tokens)), tokens]).all() else None


def _settled(
    best: Candidates, samplers: Sequence[Sampler], *, with_banned: bool, failed: Collection[int] = ()
) -> dict[int, int]:
    """The tokens of rows all of whose candidates are known, chosen together; each draws its number."""
    found = best.found.tolist()
    rows = [
        r for r, sampler in enumerate(samplers)
        if found[r] > 0 and r not in failed and sampler.sees_all(found[r]) and (with_banned or not sampler.has_edits)
    ]  # fmt: skip
    if not rows:
        return {}
    knobs = [samplers[r].knobs(found[r]) for r in rows]
    ids, values = (best.ids, best.values) if len(rows) == len(samplers) else (best.ids[rows], best.values[rows])
    return dict(zip(rows, choose_rows(ids, values, knobs)))


def _sampled(
    logits: FloatRow | Logits,
    r: int,
    sampler: Sampler,
    best: Candidates,
    untouched: tuple[FloatRow, Candidates] | None = None,
    *,
    token: int | None = None,
) -> Sampled:
    """The choice from row r, of which `best` are the candidates; `untouched` is the row before it was edited.

    `token` is the choice where it was made already.
    """
    chosen = _chosen(logits, r, sampler, best) if token is None else token
    if isinstance(chosen, Sampled):
        return chosen
    token = chosen
    try:
        sampler.accept(token)
    except GenerationError as error:
        return Sampled(-1, error=error)
    if sampler.params.logprobs is None:
        return Sampled(token)
    at, own = (r, best) if untouched is None else (0, untouched[1])
    total = float(own.logsumexp[at])
    n_top = min(sampler.params.logprobs, int(own.found[at]))
    pairs = zip(own.ids[at, :n_top].tolist(), own.values[at, :n_top].tolist())
    top = tuple((token_id, min(0.0, value - total)) for token_id, value in pairs)
    if untouched is not None:
        value = float(untouched[0][token])
    else:
        value = logits.value(r, token) if isinstance(logits, Logits) else float(logits[r, token])
    return Sampled(token, min(0.0, value - total), top)


def _chosen(logits: FloatRow | Logits, r: int, sampler: Sampler, best: Candidates) -> int | Sampled:
    """The token of a row by itself, or why there is none; looks at the whole row where candidates do not settle it."""
    allowed, row = (sampler.without_banned(best, r), 0) if isinstance(logits, Logits) else (best, r)
    found = int(allowed.found[row])
    if found < 0:
        return Sampled(-1, error=row_error(found))
    number = sampler.draw()
    n_seen = min(found, sampler.n_candidates)
    seen = allowed.ids[row, :n_seen], allowed.values[row, :n_seen]
    token = sampler.choose(*seen, float(best.logsumexp[r]), number, sampler.sees_all(found))
    if token is None:
        assert not isinstance(logits, Logits), "a device serves only what its candidates settle"
        every = top_candidates(logits[r : r + 1], [0])
        token = sampler.choose(every.ids[0, : every.found[0]], every.values[0, : every.found[0]], 0.0, number, True)
        assert token is not None
    return token
