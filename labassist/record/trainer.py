"""One line in a script that uses transformers' Trainer or TRL: record it, and resume it exactly.

    trainer = SFTTrainer(..., callbacks=[record.LedgerCallback()])      or
    record.attach(trainer)                                              before trainer.train()

Every optimizer step is recorded, whatever `logging_steps` says: loss, learning rate, gradient norm and a
digest of the batch; checkpoints are sealed as the Trainer saves them. Nothing waits for the GPU: values
are written `lag.LAG` steps later. transformers is imported by the script, never by this file.
"""

from __future__ import annotations

import atexit
import dataclasses
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from labassist.errors import InputError
from labassist.record import lag, protocol, recorder, trainer_mends, trainer_outputs, trainer_start
from labassist.record.protocol import Order
from labassist.record.trainer_files import Sealer
from labassist.record.trainer_resume import Resumer

_NEEDED = (
    "training_step",
    "get_batch_samples",
    "_get_grad_norm",
    "_load_from_checkpoint",
    "_load_rng_state",
    "_save_rng_state",
)
_NOT_COMPARED = ("runtime", "per_second", "num_tokens", "epoch")
"""Parts of names of evaluation results that are times or counts of a process, not of the model."""


def attach(trainer: Any) -> LedgerCallback:
    """Record `trainer` (a transformers Trainer or a subclass); call it once, before `trainer.train()`.

    In a workspace, or under `labassist run`, the run is recorded; elsewhere one line says that it is not,
    and only a resume is mended. Raises InputError for what is no such trainer, and for a transformers that
    lacks what is wrapped.
    """
    if not hasattr(trainer, "add_callback") or not hasattr(trainer, "training_step"):
        protocol.show_one_line_errors()
        raise InputError(
            f"a {type(trainer).__name__} is no Trainer of transformers or TRL",
            where="record.attach",
            mend="give it the trainer that you made, before trainer.train()",
        )
    callback = LedgerCallback(trainer)
    trainer.add_callback(callback)
    return callback


class LedgerCallback:
    """The same as a callback, for `callbacks=[...]` of a trainer. Made before the adapters, it seeds them."""

    def __init__(self, trainer: Any = None) -> None:
        self._start = trainer_start.prepare(built=trainer is not None)
        self._recording: Recording | None = None
        if trainer is not None:
            self._recording = Recording(trainer, self._start)

    def on_init_end(self, *_: Any, **__: Any) -> None:
        """Find the trainer that is being made: a callback is not given it."""
        if self._recording is None:
            self._recording = Recording(_owner(self), self._start)

    def __getattr__(self, name: str) -> Any:
        """Pass the Trainer's other events on to the recording; those it does not know do nothing."""
        if not name.startswith("on_"):
            raise AttributeError(name)
        if self._recording is None:
            if name == "on_train_begin":
                raise InputError(
                    "the callback was added after the trainer was made",
                    where="LedgerCallback",
                    mend="use labassist.record.attach(trainer) in its place",
                )
            return _nothing
        return getattr(self._recording, name, _nothing)


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _owner(callback: LedgerCallback) -> Any:
    """Return the trainer, among the callers, that holds this callback."""
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        handler = getattr(owner, "callback_handler", None)
        if any(one is callback for one in getattr(handler, "callbacks", ())):
            return owner
        frame = frame.f_back  # type: ignore[assignment]
    raise InputError(
        "no trainer holds this callback", where="LedgerCallback", mend="use record.attach(trainer)"
    )


class Recording:
    """Wraps one trainer, and turns what it does into the run's files."""

    def __init__(self, trainer: Any, start: trainer_start.Start) -> None:
        lacking = [name for name in _NEEDED if not hasattr(trainer, name)]
        if lacking:
            raise InputError(
                f"this transformers has no Trainer.{lacking[0]}",
                where="record.attach",
                mend="use 5.5 or newer",
            )
        self.trainer = trainer
        self.order: Order = start.order
        self.seeds = {**start.seeds, "trainer": trainer.args.seed}
        self.mends: list[dict[str, Any]] = []
        self.config = config_of(trainer)
        self.resumer = Resumer(trainer, self.order, self._tell)
        if count := trainer_mends.keep_differentiable(trainer.model):
            self._tell(
                f"{count} 4-bit layers stay as they are in evaluations: bitsandbytes would repack them for a kernel "
                "without a backward, and training would go on without their gradients",
                {"mend": "repack", "count": count},
            )
        self._recorder: recorder.Recorder | None = None
        self._lagged: lag.Lagged | None = None
        self._sealer: Sealer | None = None
        self._over = False
        self._may_measure = False
        self._stop_at: int | None = None
        self._loss: Any = None
        self._norm: Any = None
        self._rate: Any = None
        self._pieces = lag.Pieces()
        self._evaluated: set[tuple[int, str]] = set()
        if self.order.recording:
            trainer_outputs.settle(trainer, self.order)
            trainer_outputs.name_full_disk(trainer)
            self._batches = trainer.get_batch_samples
            self._step = trainer.training_step
            self._grad_norm = trainer._get_grad_norm
            trainer.get_batch_samples = self.get_batch_samples
            trainer.training_step = self.training_step
            trainer._get_grad_norm = self.grad_norm
            self._late = bool(trainer.state.global_step)
            if self._late:
                self.order.warn(
                    "attached after training: nothing of that was recorded. Mend: attach before trainer.train()"
                )
            atexit.register(self._say_nothing_recorded)
        self._alone = start.alone
        if self._alone:
            self._train = trainer.train
            trainer.train = self.train

    # ------------------------------------------------------------ what is wrapped

    def get_batch_samples(self, batches: Any, *args: Any, **more: Any) -> Any:
        """Fetch the batches of one update, and take what their digest is made of."""
        state = self.trainer.state
        if self._recorder is None and self.order.resume is not None and state.global_step >= state.max_steps:
            # The checkpoint was the last one. The Trainer looks for the end after an update only, and would make one more.
            self.trainer.control.should_training_stop = True
            return [], None
        samples, items = self._batches(batches, *args, **more)
        if self._over:
            return samples, items
        self._pieces = lag.Pieces()
        for batch in samples:
            for piece in _identifying(batch):
                if isinstance(piece, str):
                    self._pieces.add_text(piece)
                else:
                    self._pieces.add(piece)
        if self._recorder is None:
            self._begin(samples)
        self._loss = None
        return samples, items

    def train(self, *args: Any, **more: Any) -> Any:
        """Train; after ctrl-c end the script, as ctrl-c does, once the checkpoint and the record are there."""
        done = self._train(*args, **more)
        if self._stop_at is not None and self._recorder is not None and self._recorder.asked == signal.SIGINT:
            print(
                f"labassist: stopped at step {self._stop_at} with a checkpoint, as ctrl-c asked; "
                f"go on with: labassist resume {self.order.run}",
                file=sys.stderr,
            )
            sys.exit(128 + signal.SIGINT)
        return done

    def training_step(self, *args: Any, **more: Any) -> Any:
        """Run one batch; its loss is scaled already, so that those of an update add up to its loss."""
        loss = self._step(*args, **more)
        part = loss.detach()
        self._loss = part if self._loss is None else self._loss + part
        return loss

    def grad_norm(self, *args: Any, **more: Any) -> Any:
        """Return the gradient norm before clipping."""
        norm = self._grad_norm(*args, **more)
        self._norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return norm

    # ------------------------------------------------------------ the Trainer's events

    def on_pre_optimizer_step(self, *_: Any, optimizer: Any = None, **__: Any) -> None:
        """Take the learning rate that this update uses."""
        if optimizer is not None:
            rate = optimizer.param_groups[0]["lr"]
            self._rate = rate.clone() if hasattr(rate, "clone") else float(rate)

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Record the update; ask for a checkpoint and the end where a stop was requested."""
        if self._recorder is None or self._lagged is None or self._over:
            return control
        values = {"loss": self._loss, "lr": self._rate, "grad_norm": self._norm, "batch": self._pieces}
        step = state.global_step
        self._lagged.record(step, **{name: value for name, value in values.items() if value is not None})
        if self._must_stop(step):
            control.should_save = True
            control.should_training_stop = True
        return control

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Take nothing more once this trainer trains a second time: its steps begin anew."""
        if self._over:
            self._may_measure = False

    def on_evaluate(self, _args: Any, state: Any, _control: Any, metrics: Any = None, **_: Any) -> None:
        """Record what an evaluation found, but for its times; one right after the training too."""
        if (self._over and not self._may_measure) or not self.order.recording:
            return
        if self._recorder is None:
            self._begin([])
        assert self._recorder is not None
        step = state.global_step
        found = {
            name: value
            for name, value in (metrics or {}).items()
            if isinstance(value, int | float) and not any(part in name for part in _NOT_COMPARED)
        }
        new = {name: value for name, value in found.items() if (step, name) not in self._evaluated}
        self._evaluated |= {(step, name) for name in new}
        if new:
            self._recorder.record(step, **new)
        if self._over:
            self._recorder.finish(step)

    def on_save(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Have the checkpoint sealed that the Trainer has just written."""
        if self._recorder is None or self._over:
            return
        from labassist.record import checkpoint

        generators = checkpoint.gather_rng()  # so every rank has written its part, too
        seal = self._recorder.seal()
        if not state.is_world_process_zero:
            return
        assert self.order.folder is not None
        if self._sealer is None:
            self._sealer = Sealer(self.order.folder, self.order.run, self._recorder.saved)
        rng = checkpoint.rng_digest(generators)
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        self._sealer.seal(state.global_step, folder, {"curve": seal, "rng": rng})

    def on_train_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Write what is held, wait for the last seal, and close the record."""
        if self._over or not self.order.recording:
            return
        if self._recorder is None:
            if self.order.resume is None:
                return
            self._begin([])  # the checkpoint was the training's last: nothing is left but what follows it
        assert self._recorder is not None
        self._over = True
        if self._sealer is not None:
            self._sealer.wait()
        stopped = self._stop_at is not None and state.global_step < state.max_steps
        # What is measured at a stop is no part of the unbroken run.
        self._may_measure = not stopped
        self._recorder.finish(state.global_step, "stop" if stopped else "done")

    # ------------------------------------------------------------ the rest

    def _begin(self, samples: list[Any]) -> None:
        state, model = self.trainer.state, self.trainer.model
        if self.order.resume is None and state.global_step:
            # The script resumes by itself: the curve goes on from there, without a run that it came from.
            self.order = dataclasses.replace(
                self.order, resume=protocol.Resume("", state.global_step, Path(self.trainer.args.output_dir))
            )
        tokens = sum(batch["input_ids"].numel() for batch in samples if _has_ids(batch))
        self._recorder = recorder.start(
            order=self.order,
            total_steps=state.max_steps,
            tokens_per_step=tokens * protocol.world_size(),
            parameters=sum(weight.numel() for weight in model.parameters() if weight.requires_grad),
            config=self.config,
            seeds=self.seeds,
            mends=self.mends,
        )
        self._lagged = lag.Lagged(self._recorder)
        args = self.trainer.args
        if args.save_strategy == "no":
            return
        if protocol.rank() == 0 and not trainer_outputs.claim(Path(args.output_dir)):
            self.order.warn(
                f"another recorded run that is alive saves into {args.output_dir} too, and each writes over the "
                "other's checkpoints. Mend: an output_dir of its own"
            )
        if args.save_only_model:
            self.order.warn(
                "its checkpoints hold the model only: a resume cannot be exact. Mend: save_only_model=False"
            )

    def _say_nothing_recorded(self) -> None:
        """Be called at the end of the process."""
        if self._recorder is None and not self._late:
            self.order.warn("nothing was recorded: this trainer did not train after record.attach")

    def _must_stop(self, step: int) -> bool:
        """Say whether this update is the last."""
        assert self._recorder is not None
        stop, ahead = self._recorder.stop_at, self.resumer.ahead
        if stop is None:
            return False
        ahead.soon = True  # the checkpoint is to hold what an exact resume needs: one update more, if need be
        if step < stop or not ahead.ready:
            return False
        self._stop_at = step
        return True

    def _tell(self, line: str, values: dict[str, Any]) -> None:
        print(f"labassist: {line}", file=sys.stderr)
        self.mends.append(values)
        if self.order.recording:
            self.order.write_event("mend", values)


def _has_ids(batch: Any) -> bool:
    return isinstance(batch, Mapping) and hasattr(batch.get("input_ids"), "numel")


def _identifying(batch: Any) -> Iterator[Any]:
    """Yield what tells one batch from another: its token ids, else its first integers, else all it holds."""
    if _has_ids(batch):
        yield batch["input_ids"]
        return
    tensors = [value for value in _flat(batch) if hasattr(value, "data_ptr")]
    whole = next((one for one in tensors if not one.is_floating_point() and one.numel() > 1), None)
    if whole is not None:
        yield whole
    elif tensors:
        yield from tensors
    else:
        yield repr(batch)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _flat(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def config_of(trainer: Any) -> dict[str, Any]:
    """Return the trainer's arguments that are not at their defaults, and those of its adapter; no token."""
    told: dict[str, Any] = {}
    for field in dataclasses.fields(trainer.args):
        value = getattr(trainer.args, field.name, None)
        value = getattr(value, "value", value)
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        default = getattr(default, "value", default)
        plain = isinstance(value, bool | int | float | str) and len(str(value)) <= 200
        if plain and value != default and not field.name.endswith("_token"):
            told[field.name] = value
    adapters = getattr(trainer.model, "peft_config", None) or {}
    for adapter in list(adapters.values())[:1]:
        for name in ("r", "lora_alpha", "lora_dropout"):
            if isinstance(getattr(adapter, name, None), int | float):
                told[f"lora.{name.removeprefix('lora_')}"] = getattr(adapter, name)
    return told
