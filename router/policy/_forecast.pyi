"""Types of the `_forecast` kernel; forecast.py says what the calls mean."""

from typing import Protocol, Self, final

import numpy as np
import numpy.typing as npt

from ...slots._sequences import SequenceBook

class _Params(Protocol):
    """What the kernel reads off its parameters: see forecast.ForecastParams."""

    @property
    def prefill_weight(self) -> float: ...
    @property
    def decode_weight(self) -> float: ...
    @property
    def step_s(self) -> float: ...
    @property
    def token_s(self) -> float: ...
    @property
    def context_s(self) -> float: ...
    @property
    def ttft_s(self) -> float: ...
    @property
    def output_tokens(self) -> float: ...

@final
class Forecast:
    def __new__(cls, params: _Params) -> Self: ...
    @property
    def size(self) -> int: ...
    def add_worker(self, number: int, budget: int | None, blocks: int | None) -> None: ...
    def describe_worker(self, number: int, budget: int | None, blocks: int | None) -> bool:
        """Whether the size of its cache is known now, and was not before."""

    def remove_worker(self, number: int) -> None: ...
    def book(
        self,
        request_id: str,
        number: int,
        isl: int,
        tokens: int,
        now: float,
        blocks: float = 0.0,
        block_size: int = 0,
    ) -> bool:
        """`blocks` are those in use there with this request; 0: unknown, as for their size."""

    def expect(self, request_id: str, number: int, isl: int, now: float) -> bool:
        """Book a request whose prompt of `isl` tokens is computed elsewhere: it decodes here, or
        soon will. False if it is booked already."""

    def cached(self, request_id: str, tokens: int) -> bool:
        """The engine found `tokens` of a prompt cached; False if that teaches nothing."""

    def first_token(
        self, request_id: str, now: float, loaded: bool = False
    ) -> tuple[int, float, float, bool] | None:
        """(worker number, seconds foreseen when it was booked, seconds it took, whether its
        engine's cache was as good as full then, answers included, or became known since); None if
        it is not booked, or had its first token. `loaded`: it waited for blocks of lower tiers, so
        that the latency model learns nothing from it, as where a full cache makes it twice as late
        as was foreseen."""

    def foreseen_s(self, request_id: str) -> tuple[float, float] | None:
        """(seconds to its first token, as foreseen when it was booked; the least of any worker that
        it was compared with then); None if it is not booked, or only its answer is expected."""

    def end(
        self, request_id: str, now: float, output_tokens: int
    ) -> tuple[int, float, float] | None:
        """(worker number, seconds that the model expects of a token, seconds that it took), 0 where
        neither is known; None if it is not booked."""

    @property
    def late_s(self) -> float:
        """How much later the last first token came than was foreseen; nan if it teaches nothing."""

    @property
    def least_ttft(self) -> float:
        """Seconds to the first token of the last prompt scored where it comes soonest.

        0 where a worker that may take it has no request, and before enough prompts were computed.
        """

    @property
    def least_missed(self) -> float:
        """ITL objectives that the last prompt scored would cost where it costs the fewest, with the
        prompts that are computed there now.

        0 where a worker that may take it has no request, and before enough answers have ended.
        """

    def score(
        self,
        isl: int,
        block_size: int,
        overlaps: npt.NDArray[np.uint32] | None,
        blocks: npt.NDArray[np.float64] | None,
        in_use: npt.NDArray[np.int64] | None,
        eligible: npt.NDArray[np.bool_],
        now: float,
    ) -> npt.NDArray[np.float64]:
        """The cost of every worker number, inf where it is not eligible.

        `overlaps`, and the blocks in use there with the prompt and without it, are by worker
        number; None stands for zeros.
        """

    def choose(
        self,
        isl: int,
        block_size: int,
        overlaps: npt.NDArray[np.uint32] | None,
        slots: SequenceBook,
        hashes: npt.NDArray[np.uint64] | bytes | None,
        eligible: npt.NDArray[np.bool_],
        unheard: npt.NDArray[np.float64] | None,
        unheard_s: float,
        now: float,
        u: float,
    ) -> int:
        """The number of the worker of the lowest finite cost; -1 if there is none.

        The costs are those of `score`, with the blocks that `slots` count for the prompt's
        `hashes`, and `unheard_s` more for each request in `unheard`. `u`, in [0, 1), says which of
        those that cost the same. Hashes in bytes are as Prompt.packed_hashes has them.
        """

    @property
    def chosen_blocks(self) -> float:
        """In use at the worker that was chosen last, with the prompt; 0 where its cache has no
        known size."""

    def explain(
        self,
        isl: int,
        block_size: int,
        overlaps: npt.NDArray[np.uint32] | None,
        blocks: npt.NDArray[np.float64] | None,
        in_use: npt.NDArray[np.int64] | None,
        n: int,
        now: float,
        only: int = -1,
    ) -> dict[int, dict[str, float]]:
        """The terms of every worker's cost, for the worker numbers below n that are in use; `only`:
        of that one, if it is."""

    def seconds_until_free(
        self,
        eligible: npt.NDArray[np.bool_],
        active_blocks: npt.NDArray[np.int64] | SequenceBook,
        now: float,
        leaves_some: bool = False,
        memory_only: bool = False,
    ) -> float:
        """`memory_only`: 0 or inf, by the blocks in use alone, not by how long engines compute.
        `active_blocks`: those, or the slots that count them."""

    def seconds_until_relief(self, eligible: npt.NDArray[np.bool_], now: float) -> float: ...
    def stay_s(self, tokens: int) -> float:
        """Seconds for which `tokens` would fill a cache of the usual size, if they stay as
        long as an answer takes; 0 where no size is known."""

    def cold_s(self, isl: int) -> float:
        """Seconds that a prompt takes on an idle engine of the fleet's usual speed with nothing
        cached."""

    def learnt(self) -> tuple[list[float], list[float], float, float, float, float]:
        """(theta of prefill, of decode steps, TTFT, output tokens, answer seconds, stretch)."""

    @property
    def late_share(self) -> float:
        """Of the answers of late that ended, those whose mean ITL was above the objective."""

    def slowness(self, number: int) -> float: ...
    def __len__(self) -> int: ...
    def check_integrity(self) -> None: ...
