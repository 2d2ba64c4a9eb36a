"""Trained agents without PyTorch: an ``.npz`` file and a forward pass in NumPy.

The file has the weights, float32, named as in :mod:`kvgym.agents.sb3.networks` (weights are (outputs, inputs)),
and the array ``header``, a JSON string with the fields of :class:`Header`, the format's name and version.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvgym.agents.trained.header import Header
from kvgym.errors import ConfigError, shown
from kvgym.utils.arguments import explained
from kvgym.utils.files import whole_file
from kvgym.utils.reading import mapping, parse_json, read_arrays

FORMAT = "kvgym-agent"
VERSION = 1

Array = NDArray[np.float32]

_ILLEGAL = np.float32(-1e8)  # sb3-contrib's logit for masked options
_ZERO = np.float32(0.0)


class NumpyModel:
    """A trained agent that acts with NumPy alone and replaces the Stable-Baselines3 model.

    Args:
        header: everything except the weights.
        arrays: weights, float32, with the names and shapes of :meth:`Header.shapes`.
        rng: for random actions, ``predict(..., deterministic=False)``.

    Raises:
        ConfigError: the header is wrong, or arrays are missing, unknown, not finite, or of another type or shape.
    """

    @explained
    def __init__(
        self, header: Header, arrays: dict[str, Array], *, rng: np.random.Generator | None = None
    ) -> None:
        header.check()
        _check_arrays(header, arrays)
        self.header = header
        self.arrays = dict(arrays)
        self.rng = rng
        self._edges = np.cumsum(header.choices)[:-1].tolist()
        # Transpose weights to (inputs, outputs) once.
        self._w = {name: np.ascontiguousarray(a.T) for name, a in arrays.items()}
        if header.network == "slots":
            d = header.row_dim
            for rows in ("queue", "active"):
                if f"{rows}.mix.weight" in self._w:
                    mix = self._w[f"{rows}.mix.weight"]
                    self._w[f"{rows}.mix.rows"], self._w[f"{rows}.mix.context"] = mix[:d], mix[d:]

    # ------------------------------------------------------------ acting

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the file."""
        return self.header.metadata

    def content(self) -> dict[str, Any]:
        """Return the identity of the agent, JSON-able: its header without metadata, and a hash of its weights."""
        digest = hashlib.sha256()
        for name in sorted(self.arrays):
            digest.update(name.encode() + self.arrays[name].tobytes())
        header = {k: v for k, v in dataclasses.asdict(self.header).items() if k != "metadata"}
        return {"header": header, "weights": digest.hexdigest()[:20]}

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: Any = None,
        *,
        rng: np.random.Generator | None = None,
    ) -> tuple[NDArray[Any], tuple[Array, Array] | None]:
        """Return an action as Stable-Baselines3's ``predict`` does.

        Args:
            observation: (D,) or (N, D).
            state: of an agent with an LSTM, what the last call returned; None at the start of an episode.
            episode_start: bool (N,), True for observations that begin an episode: their state is reset.
            deterministic: return the most probable action (the first of several), or the means of real numbers;
                otherwise draw one. Action values (DQN) always give the largest.
            action_masks: bool (K,) or (N, K) in sb3-contrib's layout, True if legal: an entry for each option
                of each choice, two for each flag. If no option is legal, the first one counts as legal. Real numbers
                are not masked.
            rng: generator instead of the model's.

        Returns:
            The action, int64, () or (number of choices,), or float64 (number of numbers,) within its bounds, with
            (N,) in front for N observations; and the state, hidden and cell, float32 (1, N, units), None without an
            LSTM.

        Raises:
            ConfigError: a shape is wrong, or there is no generator.
        """
        logits: NDArray[Any]
        logits, state = self._forward(observation, state, episode_start)
        if self.header.outputs.real:
            return self._numbers(logits, deterministic, rng), state
        if self.header.bernoulli:  # the same as a choice between logits 0 and l
            logits = np.stack((np.zeros_like(logits), logits), -1).reshape(*logits.shape[:-1], -1)
        if action_masks is not None:
            masks = np.asarray(action_masks, np.bool_)
            if masks.size != logits.size:
                raise ConfigError(f"action_masks must be of shape {logits.shape}, got {masks.shape}")
            logits = np.where(masks.reshape(logits.shape), logits, _ILLEGAL)
        if not deterministic and self.header.algorithm != "dqn":
            rng = self._generator(rng)
            # The largest of logits with Gumbel noise is distributed as their softmax.
            logits = logits + rng.gumbel(size=logits.shape)
        return self._largest(logits), state

    def _generator(self, rng: np.random.Generator | None) -> np.random.Generator:
        rng = rng if rng is not None else self.rng
        if rng is None:
            raise ConfigError("deterministic=False needs a generator: NumpyModel.load(path, rng=...)")
        return rng

    def _numbers(
        self, outputs: Array, deterministic: bool, rng: np.random.Generator | None
    ) -> NDArray[np.float64]:
        """Return real numbers, float64 (a,) or (N, a), from the network's outputs for their means."""
        h = self.header
        if not deterministic:
            noise = self._generator(rng).standard_normal(outputs.shape)
            outputs = outputs + np.exp(self.arrays["log_std"]) * noise.astype(np.float32)
        numbers = np.array(h.centre, np.float32) + np.array(h.spread, np.float32) * outputs
        return np.clip(numbers.astype(np.float64), h.low, h.high)

    def _largest(self, logits: NDArray[Any]) -> NDArray[np.int64]:
        choices = self.header.choices
        found: NDArray[np.int64]
        if self.header.action == "flags":
            found = logits.reshape(*logits.shape[:-1], len(choices), 2).argmax(-1)
        elif len(choices) == 1:
            found = np.asarray(logits.argmax(-1))
        else:
            found = np.stack([part.argmax(-1) for part in np.split(logits, self._edges, axis=-1)], -1)
        return found

    def logits(self, observation: Any) -> Array:
        """Return the logits, or the action values of DQN; with an LSTM those at the start of an episode.

        Args:
            observation: float32 (D,) or (N, D).

        Returns:
            float32 (K,) or (N, K), equal to those of the PyTorch policy.

        Raises:
            ConfigError: the observation has another shape.
        """
        return self._forward(observation, None, None)[0]

    def _forward(
        self, observation: Any, state: Any, episode_start: Any
    ) -> tuple[Array, tuple[Array, Array] | None]:
        """Return the logits, (K,) or (N, K), and the next state."""
        x = np.asarray(observation, np.float32)
        size = self.header.observation_size
        if x.ndim not in (1, 2) or x.shape[-1] != size:
            raise ConfigError(f"observations must be of shape ({size},) or (N, {size}), got {x.shape}")
        if self.header.network == "mlp" and not self.header.lstm:
            return self._mlp(x), None
        rows, following = x if x.ndim == 2 else x[None], None
        if self.header.lstm:
            rows, following = self._remember(rows, state, episode_start)
            logits = self._mlp(rows)
        else:
            logits = self._slots(rows)
        return (logits if x.ndim == 2 else logits[0]), following

    def _remember(self, x: Array, state: Any, episode_start: Any) -> tuple[Array, tuple[Array, Array]]:
        """Return the output of the LSTM, (N, units), for observations (N, D), and its next state."""
        w, shape = self._w, (1, len(x), self.header.lstm)
        if state is None:
            state = np.zeros((2, *shape), np.float32)
        if len(state) != 2 or any(np.shape(part) != shape for part in state):
            raise ConfigError(f"state must be two arrays of shape {shape}, got {shown(state)}")
        hidden, cell = (np.asarray(part, np.float32)[0] for part in state)
        if episode_start is not None:
            goes_on = ~np.asarray(episode_start, np.bool_).reshape(-1, 1)
            hidden, cell = hidden * goes_on, cell * goes_on
        gates = x @ w["lstm.input.weight"] + w["lstm.input.bias"]
        gates += hidden @ w["lstm.state.weight"] + w["lstm.state.bias"]
        admit, keep, candidate, show = np.split(gates, 4, 1)
        cell = _sigmoid(keep) * cell + _sigmoid(admit) * np.tanh(candidate)
        hidden = _sigmoid(show) * np.tanh(cell)
        return hidden, (hidden[None], cell[None])

    def _mlp(self, x: Array) -> Array:
        """Return the logits of observations (D,) or (N, D)."""
        w, last = self._w, len(self.header.hidden)
        for i in range(last):
            x = x @ w[f"layer.{i}.weight"]
            x += w[f"layer.{i}.bias"]
            if self.header.activation == "tanh":
                np.tanh(x, out=x)
            else:
                np.maximum(x, _ZERO, out=x)
        x = x @ w[f"layer.{last}.weight"]
        x += w[f"layer.{last}.bias"]
        return x

    def _slots(self, x: Array) -> Array:
        """Return the logits of observations (N, D); see :mod:`kvgym.agents.sb3.networks`."""
        h, w, n = self.header, self._w, len(x)
        end = h.num_fixed + h.queue_window * h.queue_features
        queue = x[:, h.num_fixed : end].reshape(n, h.queue_window, h.queue_features)
        active = x[:, end:].reshape(n, h.active_window, h.active_features)
        in_queue, in_active = queue[:, :, 0], active[:, :, 0]
        if h.prefix:
            sums = (queue[:, :, h.prefix] * in_queue[:, :, None]).cumsum(1)
            queue = np.concatenate((queue, sums), 2)
        e_q, e_a = self._embed("queue", queue, in_queue), self._embed("active", active, in_active)
        if h.attention:
            present = np.concatenate((in_queue, in_active), 1)
            e_q, e_a = np.split(self._attend(np.concatenate((e_q, e_a), 1), present), [h.queue_window], 1)
        x = np.concatenate((x[:, : h.num_fixed], *_pool(e_q, in_queue), *_pool(e_a, in_active)), 1)
        c: Array = x @ w["pool.weight"]
        c += w["pool.bias"]
        np.tanh(c, out=c)
        c = c @ w["summary.weight"]
        c += w["summary.bias"]
        np.tanh(c, out=c)
        logits = self._head(c, e_q, e_a, in_queue, in_active)
        if h.algorithm == "dqn":
            logits += c @ w["head.base.weight"] + w["head.base.bias"]
        return logits

    def _head(self, c: Array, e_q: Array, e_a: Array, in_queue: Array, in_active: Array) -> Array:
        """Return the logits without DQN's base value."""
        h, w = self.header, self._w
        numbers = []
        if h.outputs.queue:
            numbers.append(self._score("queue", e_q, c, in_queue))
        if h.outputs.active:
            numbers.append(self._score("active", e_a, c, in_active))
        if h.outputs.rest:
            layer = f"head.{h.outputs.rest}"
            numbers.append(c @ w[f"{layer}.weight"] + w[f"{layer}.bias"])
        found: Array = numbers[0] if len(numbers) == 1 else np.concatenate(numbers, 1)
        if h.action == "admit_count" or (h.action == "flags" and not h.bernoulli):
            logits = np.zeros((len(c), sum(h.choices)), np.float32)
            if h.action == "admit_count":
                found.cumsum(1, out=logits[:, 1:])
            else:
                logits[:, 1::2] = found
            return logits
        return found

    def _embed(self, name: str, rows: Array, present: Array) -> Array:
        """Return e, (N, R, d), of rows (N, R, F)."""
        w = self._w
        x: Array = rows.reshape(-1, rows.shape[2]) @ w[f"{name}.first.weight"]
        x += w[f"{name}.first.bias"]
        np.maximum(x, _ZERO, out=x)
        x = x @ w[f"{name}.second.weight"]
        x += w[f"{name}.second.bias"]
        np.maximum(x, _ZERO, out=x)
        x *= present.reshape(-1, 1)
        return x.reshape(*present.shape, -1)

    def _attend(self, e: Array, present: Array) -> Array:
        """Return rows (N, R, d) that have attended to each other."""
        w = self._w
        query, key, value = np.split(e @ w["attention.inputs.weight"] + w["attention.inputs.bias"], 3, 2)
        weights = query @ key.transpose(0, 2, 1) / np.float32(math.sqrt(e.shape[2]))
        weights += ((present - 1) * np.float32(1e9))[:, None]
        weights = np.exp(weights - weights.max(2, keepdims=True))
        weights /= weights.sum(2, keepdims=True)
        found: Array = e + (weights @ value) @ w["attention.out.weight"] + w["attention.out.bias"]
        return np.maximum(found, _ZERO) * present[:, :, None]

    def _score(self, name: str, e: Array, c: Array, present: Array) -> Array:
        """Return the score of each row, (N, R)."""
        w = self._w
        u: Array = (e.reshape(-1, e.shape[2]) @ w[f"{name}.mix.rows"]).reshape(e.shape)
        u += (c @ w[f"{name}.mix.context"] + w[f"{name}.mix.bias"])[:, None]
        np.maximum(u, _ZERO, out=u)
        score: Array = (u @ w[f"{name}.out.weight"][:, 0]) * present
        score += w[f"{name}.out.bias"]
        return score

    # ------------------------------------------------------------ files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file atomically.

        Args:
            path: of the file, usually with the suffix ``.npz``.

        Raises:
            ConfigError: the folder does not exist, or environment arguments or metadata are not JSON-able.
        """
        path = Path(path)
        if not path.parent.is_dir():
            raise ConfigError(f"cannot save {path}: there is no folder {path.parent}")
        try:
            header = json.dumps({"format": FORMAT, "version": VERSION, **dataclasses.asdict(self.header)})
        except (TypeError, ValueError) as error:
            raise ConfigError(f"environment arguments and metadata must be JSON-able: {error}") from None
        with whole_file(path) as place, place.open("wb") as file:
            np.savez_compressed(file, header=np.array(header), **self.arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, rng: np.random.Generator | None = None) -> NumpyModel:
        """Read a file of :meth:`save`; nothing in it is executed.

        Args:
            path: of the file.
            rng: for random actions.

        Raises:
            ConfigError: the file is missing or damaged, or has another format or version.
        """
        arrays: dict[str, Any] = read_arrays(Path(path), "agent")
        if "header" not in arrays:
            raise ConfigError(f"{path} has no array 'header'; expected a file of NumpyModel.save")
        where = f"agent {path}: header"
        content = mapping(parse_json(str(arrays.pop("header")), where, finite=True), where)
        found = content.pop("format", None)
        if found != FORMAT:
            raise ConfigError(f"{path}: expected format {FORMAT!r}, found {shown(found)}")
        version = content.pop("version", None)
        if version != VERSION:
            raise ConfigError(f"{path}: expected format version {VERSION}, found {shown(version)}")
        try:
            fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in content.items()}
            header = Header(**fields)
            return cls(header, arrays, rng=rng)
        except (TypeError, ConfigError) as error:
            raise ConfigError(f"{path} is damaged: {error}") from None


def _sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)) without overflow."""
    found: Array = np.float32(0.5) * (np.tanh(np.float32(0.5) * x) + np.float32(1.0))
    return found


def _pool(e: Array, present: Array) -> tuple[Array, Array]:
    """Return mean and maximum (N, d) over present rows; e is non-negative, and 0 where absent."""
    count = np.maximum(np.add.reduce(present, 1, keepdims=True), np.float32(1.0))
    return np.add.reduce(e, 1) / count, np.maximum.reduce(e, 1)


def _check_arrays(header: Header, arrays: dict[str, Array]) -> None:
    shapes = header.shapes()
    missing, unknown = sorted(shapes.keys() - arrays.keys()), sorted(arrays.keys() - shapes.keys())
    if missing:
        raise ConfigError(f"missing arrays {', '.join(missing)}; expected {', '.join(shapes)}")
    if unknown:
        raise ConfigError(f"unknown arrays {', '.join(unknown)}; expected {', '.join(shapes)}")
    for name, shape in shapes.items():
        array = arrays[name]
        if array.dtype != np.float32 or array.shape != shape:
            raise ConfigError(f"array {name} must be float32 {shape}, got {array.dtype} {array.shape}")
        if not np.isfinite(array).all():
            raise ConfigError(f"array {name} has values that are not finite")
