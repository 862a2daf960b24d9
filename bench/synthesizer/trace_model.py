"""What was learned from a trace, as one file: written, read, and looked into."""

import dataclasses
import typing
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ...base.errors import ConfigError
from ..traces import TraceColumns, build_tree
from .arrivals import ArrivalProcess, learn_arrivals
from .markov import START, WINDOW, MarkovModel, learn_markov
from .sessions import CLASSES, WHOLE, SessionModel, learn_sessions

# A trace cannot begin like this; the number is the format's.
MAGIC = b"dynamo-router trace model 3\n"
CHECKSUM_BYTES = 4


class ModelError(ConfigError):
    """A model that cannot be read."""


@dataclass(frozen=True, eq=False)
class TraceModel:
    """Both models of a trace and its arrivals.

    No id and no time of day is kept, nor is the trace's name. What is kept shows a lot of its
    traffic all the same: every arrival's distance to the next, the shape of the shared prefix tree
    and when each part of it was in use, and every turn's lengths and the time to the next one.
    """

    block_size: int
    requests: int
    arrivals: ArrivalProcess
    markov: MarkovModel
    sessions: SessionModel


def learn_model(columns: TraceColumns, window: int = WINDOW) -> TraceModel:
    """Both models of a trace; `window` is the Markov model's. TraceError if its ids are no tree."""
    tree = build_tree(columns)
    return TraceModel(
        block_size=columns.block_size,
        requests=len(columns),
        arrivals=learn_arrivals(columns.timestamps_ms),
        markov=learn_markov(tree, window),
        sessions=learn_sessions(tree),
    )


def is_model(path: str | Path) -> bool:
    """Whether the file at `path` begins as a model does; False too if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def save_model(model: TraceModel, path: str | Path) -> None:
    """Write the model to a file. ConfigError if that cannot be written."""
    try:
        Path(path).write_bytes(seal(_bytes_of(model)))
    except OSError as error:
        message = f"cannot write {path}: {error.strerror or error}"
        raise ConfigError(message, key="save_model") from error


def load_model(path: str | Path) -> TraceModel:
    """The model in a file. ModelError if it is none, cut off, damaged, or of another version."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not content.startswith(MAGIC):
        raise ModelError(f"{path}: is no model of this version")
    try:
        tree = msgspec.msgpack.decode(unseal(content))
        model: TraceModel = _unpacked(TraceModel, tree)
        _require_sound(model)
    except (zlib.error, msgspec.DecodeError, LookupError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: is damaged: {error}") from error
    return model


def describe_model(model: TraceModel) -> dict[str, Any]:
    """What a model holds, by name: sizes and means, ready for JSON."""
    markov, sessions = model.markov, model.sessions
    return {
        "requests": model.requests,
        "block_size": model.block_size,
        "span_s": model.arrivals.span_ms / 1e3,
        "instants": len(model.arrivals.counts),
        "output_length": {
            "mean": markov.outputs.mean,
            "median": markov.outputs.quantile(0.5),
            "p99": markov.outputs.quantile(0.99),
        },
        "markov": {
            "window": markov.window,
            "windows": len(markov.window_offsets) - 1,
            "chains": len(markov.chain_lengths),
            "chain_length_mean": float(markov.chain_lengths.mean())
            if len(markov.chain_lengths)
            else 0.0,
            "transitions": len(markov.counts),
            "first_steps": len(markov.transition_cdf(START)[0]),
            "leaves": sum(map(len, markov.leaves)),
            "leaf_blocks_mean": sum(leaf.mean * len(leaf) for leaf in markov.leaves)
            / max(1, sum(map(len, markov.leaves))),
        },
        "sessions": {
            "stems": len(sessions.stem_lengths),
            "stem_blocks": int(sessions.stem_lengths.sum()),
            "turns_by_class": [len(records) for records in sessions.turns],
            "repeats": len(sessions.repeats),
            "followed_by_class": [
                round(len(records.gaps_ms) / max(1, len(records)), 3) for records in sessions.turns
            ],
        },
        "bytes": len(_bytes_of(model)),
    }


def seal(plain: bytes) -> bytes:
    """The file of a model: a heading, a checksum of the rest, the bytes compressed."""
    packed = zlib.compress(plain, 1)
    # zlib's own checksum is of what the stream means; some of its bits mean nothing.
    return MAGIC + zlib.crc32(packed).to_bytes(CHECKSUM_BYTES, "big") + packed


def unseal(content: bytes) -> bytes:
    """What `seal` was given; ValueError or zlib.error if it is damaged."""
    start = len(MAGIC) + CHECKSUM_BYTES
    packed = content[start:]
    if content[len(MAGIC) : start] != zlib.crc32(packed).to_bytes(CHECKSUM_BYTES, "big"):
        raise ValueError("its checksum does not fit")
    return zlib.decompress(packed)


def _bytes_of(model: TraceModel) -> bytes:
    return msgspec.msgpack.encode(_packed(model))


def _packed(value: Any) -> Any:
    """A dataclass as a map, an array as [type, bytes], a tuple as a list."""
    if dataclasses.is_dataclass(value):
        return {
            field.name: _packed(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, np.ndarray):
        return [value.dtype.str, value.tobytes()]
    if isinstance(value, tuple):
        return [_packed(item) for item in value]
    return value


def _unpacked(kind: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return typing.cast(Any, kind)(
            **{field.name: _unpacked(hints[field.name], value[field.name])
               for field in dataclasses.fields(kind)}
        )  # fmt: skip
    origin = typing.get_origin(kind)
    if hasattr(origin, "__value__"):  # an alias by `type`, as numpy 2.5 declares its NDArray
        return _unpacked(origin.__value__[typing.get_args(kind)], value)
    if origin is tuple:
        return tuple(_unpacked(typing.get_args(kind)[0], item) for item in value)
    if origin is np.ndarray:
        wanted = np.dtype(typing.get_args(typing.get_args(kind)[1])[0])
        if np.dtype(value[0]) != wanted:
            raise TypeError(f"an array of {value[0]} where {wanted.str} belongs")
        return np.frombuffer(value[1], wanted)
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} where a {kind.__name__} belongs")
    return value


def _require_sound(model: TraceModel) -> None:
    """ValueError where parts of a model contradict each other, so that drawing would fail."""
    markov, sessions, arrivals = model.markov, model.sessions, model.arrivals
    chains, rows = len(markov.chain_lengths), len(markov.counts)
    sound = [
        model.requests >= 1 and model.block_size >= 1,
        model.requests == markov.requests == sessions.requests == arrivals.counts.sum(),
        len(arrivals.gaps_ms) == len(arrivals.counts) and arrivals.gaps_ms.min() >= 0,
        len(markov.chain_parents)
        == len(markov.chain_stems)
        == len(markov.chain_residuals)
        == chains,
        len(markov.sources) == len(markov.targets) == rows and markov.counts.min() >= 1,
        -1 <= markov.sources.min() and markov.sources.max() < chains,
        -3 <= markov.targets.min() and markov.targets.max() < chains,
        1 <= markov.window <= markov.requests,
        len(markov.window_offsets) == -(-markov.requests // markov.window) + 1,
        len(sessions.opens) == len(sessions.taken) == sessions.requests,
        sessions.taken.min() >= 0,
        len(sessions.stem_parents) == len(sessions.stem_lengths),
        len(sessions.turns) == CLASSES and len(sessions.turns[0]) >= 1,
    ]
    # Who goes on needs a record to go on with.
    kinds = np.concatenate([each.share_kinds for each in (*sessions.turns, sessions.repeats)])
    sound += [
        any(map(len, sessions.turns[1:])) or not (kinds != WHOLE).any(),
        len(sessions.repeats) >= 1 or not (kinds == WHOLE).any(),
    ]
    for records in (*sessions.turns, sessions.repeats):
        sound += [
            len(records.numbers) == len(records.new_tokens) == len(records.outputs) == len(records),
            len(records.child_offsets) == len(records) + 1,
            len(records.gaps_ms) == len(records.share_kinds) == len(records.share_values),
            records.child_offsets[-1] == len(records.gaps_ms),
        ]
    if not all(sound):
        raise ValueError(f"its parts contradict each other (check {sound.index(False)})")
