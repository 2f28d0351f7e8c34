"""Everything that `ckpt check` can say: one row a code, with what it means for a learner and how to mend it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

Severity = Literal["info", "notice", "warning", "error"]
"""Normal here, a format's limit, not exact, broken."""

STATES = ("model", "optimizer", "scheduler", "scaler", "rng", "data_position")


class Code(NamedTuple):
    """What one code stands for. `message` and `mend` take facts in braces."""

    severity: Severity
    message: str
    consequence: str
    mend: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to say about a checkpoint."""

    code: str
    severity: Severity
    state: str | None
    path: str
    """Relative to the checkpoint."""
    rank: int | None
    message: str
    consequence: str
    mend: str

    def document(self) -> dict[str, Any]:
        """Return it as `ckpt check --json` prints it."""
        return asdict(self)


def finding(
    code: str,
    state: str | None = None,
    path: str = "",
    rank: int | None = None,
    severity: Severity | None = None,
    **facts: Any,
) -> Finding:
    """Return the finding of a code. `severity` overrides the table's, for what a format makes normal."""
    row = CODES[code]
    return Finding(
        code=code,
        severity=severity or row.severity,
        state=state,
        path=path,
        rank=rank,
        message=row.message.format(state=state, rank=rank, **facts),
        consequence=row.consequence,
        mend=row.mend.format(**facts),
    )


_OLDER = "resume from an older checkpoint that is whole"
_RETRAIN = "resume from a checkpoint that has it, or accept a run that is not the same"

CODES: dict[str, Code] = {
    # ------------------------------------------------------------------ torn and corrupt
    "never-completed": Code(
        "error",
        "the save was never finished: {why}",
        "The writer died in the middle: some files are from this step, others are missing or half written.",
        _OLDER,
    ),
    "file-empty": Code("error", "the file is empty", "Nothing can be loaded from it.", _OLDER),
    "file-torn": Code(
        "error",
        "the file is cut or altered: {why}",
        "Loading fails, or worse, gives other numbers than were saved.",
        _OLDER,
    ),
    "crc-mismatch": Code(
        "error",
        "the bytes of {member} are not those that were saved (CRC-32)",
        "torch.load would read it without a word: a weight or a moment would silently be another number.",
        _OLDER,
    ),
    "hash-mismatch": Code(
        "error",
        "{why}",
        "The file is not the one that was saved: training would go on from other numbers.",
        _OLDER,
    ),
    "json-torn": Code(
        "error", "the file is no whole JSON: {why}", "The trainer cannot read its own state.", _OLDER
    ),
    "file-missing": Code(
        "error", "the file is missing: {why}", "What it held is lost, so loading fails or skips it.", _OLDER
    ),
    "shard-missing": Code(
        "error",
        "the index names the shard {shard}, which is not there",
        "A part of the model is lost: loading fails.",
        "copy the shard again from where the checkpoint was made, or " + _OLDER,
    ),
    "shard-unlisted": Code(
        "error",
        "the index and the shards disagree: {why}",
        "The shards are of two different saves: half of the model is from another step.",
        _OLDER,
    ),
    "rank-file-missing": Code(
        "error",
        "the part of rank {rank} is missing",
        "That rank's share of the state is lost: loading fails, or a part starts from nothing.",
        "copy it from the machine that had this rank, or " + _OLDER,
    ),
    "pickle-hostile": Code(
        "error",
        "the pickle would run {name}",
        "Loading this file with torch.load(weights_only=False) or pickle runs that code with your rights.",
        "do not load it; delete the file and get the checkpoint from a source you trust",
    ),
    "pickle-foreign": Code(
        "warning",
        "the pickle imports {name}, which checkpoints do not need",
        "torch.load refuses it by default, and without that guard it imports code that nobody has checked.",
        "save plain tensors and numbers only, or trust the source and allow this class by name",
    ),
    "temporary-left": Code(
        "info", "{name} is the rest of a save that was cut off", "It only takes space.", "delete it"
    ),
    # ------------------------------------------------------------------ a state is missing
    "weights-missing": Code(
        "error", "there are no weights", "Training would start over from random or base weights.", _OLDER
    ),
    "optimizer-missing": Code(
        "warning",
        "there is no optimizer state",
        "Adam forgets its moments: the first resumed loss is equal, then it jumps while Adam warms up again.",
        _RETRAIN,
    ),
    "scheduler-missing": Code(
        "warning",
        "there is no learning-rate scheduler state",
        "The rate starts again: a second warm-up, or a cosine that is shifted.",
        _RETRAIN,
    ),
    "optimizer-skipped": Code(
        "warning",
        "optimizer.pt is there, but the Trainer skips it too, because {absent} is not",
        "Both are loaded together or not at all, without a warning: the moments are lost as well as the rate.",
        "put {absent} back, or load optimizer.pt yourself before training goes on",
    ),
    "scheduler-skipped": Code(
        "warning",
        "scheduler.pt is there, but the Trainer skips it too, because {absent} is not",
        "Both are loaded together or not at all, without a warning: the rate restarts as well.",
        "put {absent} back, or load scheduler.pt yourself before training goes on",
    ),
    "scaler-missing": Code(
        "warning",
        "training was in fp16 and there is no GradScaler state",
        "The loss scale starts at its initial value: the first gradients overflow and steps are skipped.",
        _RETRAIN,
    ),
    "rng-missing": Code(
        "warning",
        "there is no random-number state",
        "Dropout, shuffling and augmentation draw other numbers: the run goes on, but not as it would have.",
        _RETRAIN,
    ),
    "rng-part-missing": Code(
        "warning",
        "the random-number state lacks {part}",
        "What draws from that generator continues differently.",
        _RETRAIN,
    ),
    "rng-rank-missing": Code(
        "warning",
        "the random-number state of rank {rank} is missing",
        "That rank silently goes on with fresh random numbers: its dropout and its data drift from the original.",
        "copy the file from the machine that had this rank",
    ),
    "data-position-missing": Code(
        "warning",
        "nothing says which samples were already seen",
        "Some samples are seen twice and others never.",
        _RETRAIN,
    ),
    "format-limit": Code(
        "notice",
        "this format does not store the {state} state{why}",
        "The run can go on, but not exactly as it would have.",
        "save that state yourself beside the checkpoint, or use a format that keeps it",
    ),
    "save-only-model": Code(
        "notice",
        "only the model was saved (save_only_model)",
        "Resuming works without a warning, with a restarted learning rate and an optimizer that knows nothing.",
        "set save_only_model=False for checkpoints that you want to resume from",
    ),
    # ------------------------------------------------------------------ ranks and randomness
    "rng-identical": Code(
        "info",
        "all {count} ranks hold the same random-number state",
        "Every rank draws the same dropout masks. Normal where all ranks were seeded alike; a fault if each had its own seed.",
        "seed each rank differently (accelerate: set_seed(seed, device_specific=True)) if you mean them to differ",
    ),
    "rank-copied": Code(
        "warning",
        "this rank's file was written by {origin}: one rank's {state} stands in for another's",
        "Two ranks go on from the same state; the other's is lost.",
        "copy each rank's own file from the machine that wrote it",
    ),
    "ranks-swapped": Code(
        "warning",
        "the files of ranks {ranks} are swapped: each was written under the other's name",
        "Each of these ranks goes on with what belongs to another.",
        "rename the files back",
    ),
    "rng-numpy1": Code(
        "warning",
        "numpy's random state was pickled by numpy 1 (numpy.core), which a numpy 2 trainer refuses",
        "The load of the random state fails, and some trainers swallow the error: dropout and order change silently.",
        "resume with the numpy that saved it, or rewrite the file under numpy 1 with plain lists",
    ),
    "augmentation-order": Code(
        "info",
        "the first batches after a resume in mid-epoch are drawn before the random state is restored",
        "If the dataset or the collator draws random numbers (masking, augmentation), those batches differ.",
        "draw augmentation from a generator of your own that depends on the sample's index",
    ),
    "world-size-changed": Code(
        "warning",
        "saved by {was} ranks, to be resumed by {now}",
        "Each rank sees other samples; with DDP the steps an epoch and the schedule's length change too.",
        "resume with as many processes as before",
    ),
    "zero-world-size": Code(
        "error",
        "ZeRO files of {was} ranks cannot be loaded by {now}",
        "Each rank's optimizer part fits only the same number of ranks: loading fails.",
        "convert with ds_to_universal.py and load with load_universal_checkpoint, or use as many ranks",
    ),
    # ------------------------------------------------------------------ steps do not agree
    "step-mismatch-scheduler": Code(
        "error",
        "the scheduler is at step {scheduler}, the trainer at {step}",
        "The files are of two different saves, or the schedule was stepped otherwise: the rate is wrong from here on.",
        _OLDER,
    ),
    "step-mismatch-optimizer": Code(
        "error",
        "the optimizer has done {optimizer} steps, the trainer {step}",
        "The files are of two different saves: moments and weights do not belong together.",
        _OLDER,
    ),
    "step-mismatch-name": Code(
        "error",
        "the name says step {named}, the content {step}",
        "The folder was renamed or its files come from another one.",
        "look at both folders, or " + _OLDER,
    ),
    "skipped-steps": Code(
        "info",
        "the optimizer did {optimizer} of {step} steps: fp16 skipped the others",
        "Normal with a GradScaler: a step with overflowing gradients is left out.",
        "nothing to do",
    ),
    "accumulation-partial": Code(
        "warning",
        "{batches} batches do not make whole updates of {accumulate}: gradients were half accumulated",
        "The gradients of the batches since the last update are in no file: they are lost on resume.",
        "save at an update's end only (after optimizer.step)",
    ),
    "epoch-boundary": Code(
        "warning",
        "it was saved at the last batch of an epoch, before the data loader noticed the end",
        "The loader gives nothing more after the resume: a whole epoch is skipped without a word.",
        "save once the epoch is over, or one batch earlier; or resume with a fresh loader at the next epoch",
    ),
    "data-skip-ignored": Code(
        "warning",
        "ignore_data_skip is set",
        "The resumed epoch starts with its first sample: some are seen twice and the last ones never.",
        "set ignore_data_skip=False",
    ),
    "early-stopping-reset": Code(
        "warning",
        "early stopping had waited {patience} evaluations, and a resume starts to count at 0",
        "Training stops later than it would have.",
        "set restore_callback_states_from_checkpoint=True and pass the callback again",
    ),
    "loader-no-rank": Code(
        "notice",
        "one loader state for {count} ranks: its file has no rank in its name",
        "All ranks write the same file, and the last one wins: the others resume at its position.",
        "save each rank's loader state under its own name",
    ),
    "loader-buffer": Code(
        "notice",
        "what the loader had read ahead for packing is not stored",
        "The rows after the resume are packed differently, so the batches are not the same.",
        "nothing: it is a limit of the format",
    ),
    "loader-workers": Code(
        "info",
        "the loader's state is of {count} worker processes",
        "Resuming with another num_workers fails.",
        "keep num_workers as it was",
    ),
    # ------------------------------------------------------------------ names, shapes, data types
    "prefix": Code(
        "warning",
        "every weight's name begins with {prefix}",
        "A plain model has other names: a strict load fails, and a lax one loads nothing and says nothing.",
        "save the unwrapped model (model.module, model._orig_mod), or strip the prefix when loading",
    ),
    "embedding-tokenizer": Code(
        "error",
        "the embedding has {rows} rows, the tokenizer {tokens} tokens",
        "The highest token ids have no row: an index error, or on a GPU an assert that kills the process.",
        "use the tokenizer of this checkpoint, or call resize_token_embeddings before loading",
    ),
    "embedding-config": Code(
        "error",
        "the embedding has {rows} rows, config.json says {tokens}",
        "The model is built with another size than the weights have: loading fails.",
        "correct vocab_size in config.json, or bring back the config of this checkpoint",
    ),
    "embedding-padded": Code(
        "info",
        "the embedding has {rows} rows for {tokens} tokens",
        "Normal: rows are padded to a size that the hardware likes.",
        "nothing to do",
    ),
    "tied-weights": Code(
        "info",
        "lm_head is not stored",
        "Normal: it shares its weight with the embedding.",
        "nothing to do",
    ),
    "head-missing": Code(
        "error",
        "lm_head is not stored, and config.json says that it is not tied",
        "The output layer would be random.",
        _OLDER,
    ),
    "base-weights": Code(
        "info",
        "only the adapter is stored, not the base model",
        "Normal: the base model is loaded from where it came from.",
        "keep the base model at the same revision",
    ),
    "adapter-subfolder": Code(
        "info",
        "the adapter is only in the subfolder {folder}",
        "Normal for a named adapter; a loader that looks in the folder itself finds none and trains a fresh one.",
        "name the adapter when loading (load_adapter(…, adapter_name={folder!r}))",
    ),
    "adapter-dtype": Code(
        "warning",
        "the adapter was trained in {dtype}; the stock Trainer brings it back as float32 on resume",
        "The second resumed step differs (with dropout in the adapter the first does already): the weights are of another type than they were trained in.",
        "resume with labassist.record.attach(trainer), which keeps each weight's type, or train the adapter in float32",
    ),
    "lora-b-zero": Code(
        "warning",
        "every lora_B is zero after {step} steps: the adapter was never trained",
        "The adapter adds nothing: the result is the base model.",
        "look for frozen adapter weights or a learning rate of 0, and train again",
    ),
    "optimizer-count": Code(
        "error",
        "the optimizer has {optimizer} weights, the {what} {weights}",
        "They are not of the same model: loading fails, or moments go to the wrong weights.",
        _OLDER,
    ),
    "optimizer-shapes": Code(
        "error",
        "the optimizer has moments of shape {shape}, which no weight has",
        "They are not of the same model: the first resumed step fails or corrupts the weights.",
        _OLDER,
    ),
    "optimizer-paged": Code(
        "info",
        "the optimizer's state is 8-bit, and was paged if the run used a paged optimizer",
        "A loaded state is not paged until it is moved: the first resumed steps may need more GPU memory.",
        "leave some GPU memory free for the resume, and keep optim as it was",
    ),
    "optimizer-memory": Code(
        "warning",
        "weights and optimizer are {size} GiB, and {free} GiB of {place} are free here",
        "Training fitted, the resume does not: the state is loaded whole beside the model first.",
        "resume on a machine with more memory, or load with map_location='cpu' and mmap=True",
    ),
    "not-finite": Code(
        "warning",
        "the loss was not a number at step {step}",
        "The weights are damaged already: going on only repeats it.",
        "resume from a checkpoint before that step, with a lower rate",
    ),
    # ------------------------------------------------------------------ plan against checkpoint
    "plan-schedule": Code(
        "warning",
        "{key} was {was} and is to be {now}",
        "The schedule is stretched or squeezed: the rate at each step from here on is another one.",
        "keep the length, or choose a schedule that does not depend on it",
    ),
    "plan-batch-split": Code(
        "warning",
        "the global batch of {total} was {was} and is to be split {now}",
        "The same samples in other micro-batches: sums are rounded differently and dropout differs.",
        "keep per_device_train_batch_size and gradient_accumulation_steps for an exact resume",
    ),
    "plan-batch": Code(
        "warning",
        "the global batch was {was} and is to be {now}",
        "The skip over seen samples is counted in batches, so some are seen twice or never; the noise changes too.",
        "keep the global batch",
    ),
    "plan-dataset": Code(
        "warning",
        "{why}",
        "The order of the samples and the length of an epoch change: the resume goes on at another place.",
        "resume with the dataset of this run",
    ),
    "plan-packing": Code(
        "warning",
        "packing was {was} and is to be {now}",
        "The samples are cut differently: the position in the data means nothing any more.",
        "keep packing as it was",
    ),
    "plan-zero-stage": Code(
        "error",
        "the ZeRO stage was {was} and is to be {now}",
        "Each stage cuts the state differently: loading fails.",
        "keep the stage, or convert with ds_to_universal.py",
    ),
    "plan-precision": Code(
        "warning",
        "precision was {was} and is to be {now}",
        "Every value from the first resumed step on is rounded differently.",
        "keep the precision",
    ),
    "plan-seed": Code(
        "warning",
        "the seed was {was} and is to be {now}",
        "The order of the samples is drawn from the seed: the resume skips other samples than were seen.",
        "keep the seed",
    ),
    # ------------------------------------------------------------------ several checkpoints
    "newest-incomplete": Code(
        "error",
        "the newest checkpoint is not whole; {better} is",
        "A resume from the last one fails or starts from damaged state.",
        "name {better} when you resume",
    ),
    "half-rotated": Code(
        "error",
        "its deletion began and was not finished ({why}), and a newer one is whole",
        "It is no checkpoint any more.",
        "delete the folder",
    ),
    "latest-wrong": Code(
        "error",
        "`latest` names {named}, which is not there",
        "The loader follows `latest` and finds nothing.",
        "write the name of a whole checkpoint into `latest`",
    ),
    "latest-missing": Code(
        "error",
        "there is no `latest` file",
        "DeepSpeed loads nothing without it and only warns: training starts from step 0.",
        "write the tag's name into a file `latest`, or pass tag= to load_checkpoint",
    ),
}
