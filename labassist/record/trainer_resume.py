"""Make a Hugging Face Trainer go on exactly where it was, and mend what it gets wrong on the way.

Two faults of the stock stack are mended (docs/exactness.md has what was measured):

- *dtype*: PEFT loads a checkpoint's adapters as fp32 where training had made them bf16. Each parameter
  gets the dtype that it had before the load, before the optimizer's state is loaded.
- *early draws*: the Trainer fetches the first batches of a resumed epoch before it restores the random
  generators, so that random augmentation differs; and one batch is always fetched ahead of its step. The
  generators as they were before that fetch are kept with the checkpoint, and both are put back in order.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from labassist.record import protocol
from labassist.record.protocol import Order

Tell = Callable[[str, dict[str, Any]], None]
"""Says and records one mend: a line for a person, and the event's values."""


class Resumer:
    """Wraps what a trainer does around a resume: which checkpoint, the weights' dtypes, the generators."""

    def __init__(self, trainer: Any, order: Order, tell: Tell) -> None:
        self.trainer = trainer
        self.tell = tell
        self.ahead = Ahead(trainer, order.stop_after)
        self._ordered = order.resume
        self._train = trainer.train
        self._load = trainer._load_from_checkpoint
        trainer.train = self.train
        trainer._load_from_checkpoint = self.load_weights

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **more: Any) -> Any:
        """Train; under an order to resume from the checkpoint that it names, whatever the script says."""
        if self._ordered is not None:
            resume_from_checkpoint = str(self._ordered.path)
            self._ordered = None
        return self._train(resume_from_checkpoint, *args, **more)

    def load_weights(self, checkpoint: str, model: Any = None, **more: Any) -> Any:
        """Load the weights, and give back to each parameter the dtype that it trained in."""
        owner = self.trainer.model if model is None else model
        before = {name: value.dtype for name, value in owner.named_parameters()}
        done = self._load(checkpoint, model, **more)
        changed = {}
        for name, value in owner.named_parameters():
            wanted = before.get(name, value.dtype)
            if value.dtype != wanted:
                changed[name] = [str(one).removeprefix("torch.") for one in (value.dtype, wanted)]
                value.data = value.data.to(wanted)
        if changed:
            first, (found, meant) = next(iter(changed.items()))
            self.tell(
                f"{len(changed)} parameters came back from the checkpoint as {found} and train on as {meant}, "
                f"as before ({first}, …)",
                {"mend": "dtype", "count": len(changed), "from": found, "to": meant, "first": first},
            )
        self.ahead.resume_from(checkpoint)
        return done


class Ahead:
    """Keeps the generators in step with the batch that is fetched one step ahead.

    The states that matter are P, before the fetch of the first batch that no step has seen yet, and S, at
    the checkpoint. A resumed epoch must fetch that batch with P and all later ones with S; the Trainer
    fetches them with whatever is there, and sets S after that. Only batches that are fetched by their index
    and in this process count: workers have generators of their own, which no checkpoint holds, and a
    stream fetches once more all that it skips.
    """

    def __init__(self, trainer: Any, stop_after: int | None) -> None:
        self.trainer = trainer
        self.soon = False
        """A checkpoint comes at the next update, or at one soon after: note the generators at each fetch."""
        self._stop_after = stop_after
        self._strategy: str | None = None
        self._noted: tuple[Any, Any, Any] | None = None
        self._checkpoint = ""
        self._before: dict[str, Any] | None = None
        self._restored = False
        self._undo: Callable[[], None] | None = None
        self._save_rng = trainer._save_rng_state
        self._load_rng = trainer._load_rng_state
        self._loader = trainer.get_train_dataloader
        self._batches = trainer.get_batch_samples
        trainer._save_rng_state = self.save_rng
        trainer._load_rng_state = self.load_rng
        trainer.get_train_dataloader = self.make_loader
        trainer.get_batch_samples = self.get_batch_samples

    def get_batch_samples(self, batches: Any, *args: Any, **more: Any) -> Any:
        """Fetch the batches of one update, noting the generators before each fetch."""
        watched = batches if self.trainer.args.dataloader_num_workers else _Watched(batches, self)
        return self._batches(watched, *args, **more)

    def resume_from(self, checkpoint: str) -> None:
        """Read P of a checkpoint; a checkpoint of a stock Trainer has none, and nothing is changed then."""
        file = Path(checkpoint) / _file()
        if file.is_file() and not self.trainer.args.dataloader_num_workers:
            import torch

            self._checkpoint = checkpoint
            self._before = torch.load(file, weights_only=True)

    def make_loader(self, *args: Any, **more: Any) -> Any:
        """Return the Trainer's own loader; for a resumed epoch one that restores S after its first batch."""
        loader = self._loader(*args, **more)
        import torch

        base: Any = getattr(loader, "base_dataloader", None)
        if base is None or isinstance(base.dataset, torch.utils.data.IterableDataset):
            self._before = None
        if self._before is not None:
            collate = base.collate_fn

            def undo() -> None:
                base.collate_fn, base.generator = collate, None

            def first(samples: Any) -> Any:
                batch = collate(samples)
                if self._before is not None:
                    self._before = None
                    self._restored = True
                    self._load_rng(self._checkpoint)
                    self.note()
                    undo()
                return batch

            self._undo = undo

            base.collate_fn = first
            # The iterator draws a seed for workers from the global generator unless the loader has its own.
            # That draw belongs to the beginning of the epoch, which was long ago.
            base.generator = torch.Generator()
        return loader

    def fetch(self) -> None:
        """Be told that a batch is fetched next."""
        if self._due():
            self.note()
        else:
            self._noted = None
        if self._before is not None:
            from labassist.record.checkpoint import set_rng

            set_rng(self._before)

    @property
    def ready(self) -> bool:
        """Whether a checkpoint that is made now holds all that there is to hold."""
        return self._noted is not None or bool(self.trainer.args.dataloader_num_workers)

    def _due(self) -> bool:
        """Say whether a checkpoint may follow the update that fetches now: noting costs tens of microseconds."""
        if self._strategy is None:
            self._strategy = str(self.trainer.args.save_strategy.value)
        state = self.trainer.state
        step = state.global_step + 1
        if self.soon or step == self._stop_after or step == state.max_steps:
            return True
        if self._strategy == "steps":
            return bool(step % state.save_steps == 0)
        # At the end of an epoch nothing is ahead; what else asks for checkpoints can do so at any update.
        return self._strategy not in ("epoch", "no")

    def note(self) -> None:
        """Keep the generators as they are, in case a checkpoint is made before the next fetch."""
        import torch

        numpy_state = sys.modules["numpy"].random.get_state()
        self._noted = (random.getstate(), numpy_state, torch.get_rng_state())

    def save_rng(self, output_dir: str) -> Any:
        """Save S as the Trainer does, and P beside it."""
        done = self._save_rng(output_dir)
        if self._noted is not None:
            import torch

            python, (kind, keys, *rest), generator = self._noted
            kept = {"python": python, "numpy": (kind, keys.tolist(), *rest), "torch": generator}
            torch.save(kept, Path(output_dir) / _file())
        return done

    def load_rng(self, checkpoint: str | None) -> Any:
        """Restore S, unless that was done at its place already."""
        if self._restored:
            self._restored = False
            return None
        # Before any fetch the Trainer restores S only where an epoch begins: nothing was ahead then, and
        # the loader must draw as its own again.
        self._before = None
        if self._undo is not None:
            self._undo()
            self._undo = None
        return self._load_rng(checkpoint)


class _Watched:
    """An iterator over batches that says when it fetches."""

    def __init__(self, batches: Any, owner: Ahead) -> None:
        self._batches = batches
        self._owner = owner

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._owner.fetch()
        return next(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def _file() -> str:
    return f"labassist-ahead-{protocol.rank()}.pt"
