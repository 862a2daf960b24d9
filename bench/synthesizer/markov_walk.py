"""Draws requests from a Markov model."""

from collections.abc import Iterable, Iterator

from ..traces import TraceRequest
from .empirical import Empirical
from .markov import END, START, MarkovModel, chain_depths, depth_class
from .scaling import MAX_REJECTED, FreshIds, Scaling
from .streams import Streams, passes


def walk_markov(
    model: MarkovModel,
    block_size: int,
    times_ms: Iterable[float],
    streams: Streams,
    scaling: Scaling,
) -> Iterator[TraceRequest]:
    """Requests at the given times, for as long as there are any.

    Steps, leaves, residuals and outputs are drawn without putting back, so that as many requests
    as were learned have the learned number of visits to every node. After them the windows begin
    anew, with new ids for all that is not a stem: more requests are more of the same, not more
    hits on old prefixes. ConfigError if nothing fits the scaling's limits.
    """
    walker = _Walker(model, block_size, streams, scaling)
    output_dither = streams["output dither"]
    outputs = passes(model.outputs.samples(), streams["outputs"])
    for at in times_ms:
        length, ids = walker.draw()
        yield TraceRequest(
            scaling.timestamp(at),
            length,
            scaling.output_length(next(outputs), output_dither.random()),
            ids,
        )


class _Walker:
    def __init__(
        self, model: MarkovModel, block_size: int, streams: Streams, scaling: Scaling
    ) -> None:
        self._model = model
        self._block_size = block_size
        self._scaling = scaling
        self._shuffle = streams["steps"].shuffle
        self._dither = streams["prefix dither"].random
        self._fresh = FreshIds()
        self._families = passes(range(scaling.prefix_root_multiplier), streams["families"])
        self._residuals = passes(model.residuals.samples(), streams["residuals"])
        self._leaves = [self._deck(leaf, streams, at) for at, leaf in enumerate(model.leaves)]
        self._depths = chain_depths(model.chain_parents, model.chain_lengths)
        self._stems: list[bool] = model.chain_stems.tolist()
        self._families_of: dict[int, int] = {}  # by the first chain that is no stem
        self._residual_of: list[int] = model.chain_residuals.tolist()
        self._chain_ids: list[dict[int, range]] = [
            {} for _ in range(scaling.prefix_root_multiplier)
        ]
        self._steps: dict[int, list[int]] = {}  # what is left of a window's, shuffled
        self._all_steps: dict[int, list[int]] = {}
        self._window = -1
        self._left = 0  # requests of this window to come

    @staticmethod
    def _deck(leaf: Empirical, streams: Streams, at: int) -> Iterator[int]:
        return passes(leaf.samples(), streams[f"leaves {at}"])

    def draw(self) -> tuple[int, tuple[int, ...]]:
        """The input length and the ids of the next request."""
        if not self._left:
            self._next_window()
        self._left -= 1
        for _ in range(MAX_REJECTED):
            path, rest = self._walk()
            known = self._chain_ids[self._family_of(path)]
            ids: list[int] = []
            for chain in path:
                if chain not in known:
                    known[chain] = self._new_ids(chain, len(ids))
                ids += known[chain]
            length = len(ids) * self._block_size + rest
            if length < 1:  # a shared end whose chains were all scaled away
                length += self._block_size
            if self._scaling.fits(length):
                total = -(-length // self._block_size)
                return length, (*ids, *self._fresh.take(total - len(ids)))
        raise self._scaling.nothing_fits()

    def _walk(self) -> tuple[list[int], int]:
        """Chains on the way, and the tokens after them: below 0 if their last block is partial."""
        source, depth = START, 0
        path: list[int] = []
        while True:
            deck = self._steps[source]
            if not deck:
                deck += self._all_steps[source]
                self._shuffle(deck)
            source = deck.pop()
            if source < 0:
                break
            path.append(source)
            depth = self._depths[source]
        if source == END:
            return path, self._residual_of[path[-1]] - self._block_size
        blocks = next(self._leaves[depth_class(depth)])
        learned = (blocks - 1) * self._block_size + next(self._residuals)
        return path, self._scaling.leaf_tokens(learned)

    def _family_of(self, path: list[int]) -> int:
        """Stems are in every family; what grows from one stays in the family it began in."""
        for chain in path:
            if not self._stems[chain]:
                if chain not in self._families_of:
                    self._families_of[chain] = next(self._families)
                return self._families_of[chain]
        return next(self._families)

    def _new_ids(self, chain: int, before: int) -> range:
        blocks = int(self._depths[chain] * self._scaling.prefix_len_multiplier + self._dither())
        # Where prompts end within a block, it is no other prompt's, however short the chain.
        least = 0 < self._residual_of[chain] < self._block_size
        return self._fresh.take(max(least, blocks - before))

    def _next_window(self) -> None:
        model = self._model
        self._window += 1
        if self._window == len(model.window_offsets) - 1:
            self._window = 0
            self._chain_ids = [
                {chain: ids for chain, ids in known.items() if self._stems[chain]}
                for known in self._chain_ids
            ]
            self._families_of.clear()
        self._left = min(model.window, model.requests - self._window * model.window)
        rows = slice(*model.window_offsets[self._window : self._window + 2].tolist())
        self._all_steps = {}
        for source, target, count in zip(
            model.sources[rows].tolist(),
            model.targets[rows].tolist(),
            model.counts[rows].tolist(),
            strict=True,
        ):
            self._all_steps.setdefault(source, []).extend([target] * count)
        self._steps = {source: list(steps) for source, steps in self._all_steps.items()}
        for deck in self._steps.values():
            self._shuffle(deck)
