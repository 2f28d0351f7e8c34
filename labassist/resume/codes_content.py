"""What can be wrong between the parts of a checkpoint: steps, names, shapes, types, plans, siblings."""

from __future__ import annotations

from labassist.resume.codes import OLDER, RETRAIN, Code

CODES: dict[str, Code] = {
    # ------------------------------------------------------------------ steps do not agree
    "step-mismatch-scheduler": Code(
        "error",
        "the scheduler is at step {scheduler}, the trainer at {step}",
        "The files are of two different saves, or the schedule was stepped otherwise: the rate is wrong from here on.",
        OLDER,
    ),
    "step-mismatch-optimizer": Code(
        "error",
        "the optimizer has done {optimizer} steps, the trainer {step}",
        "The files are of two different saves: moments and weights do not belong together.",
        OLDER,
    ),
    "counts-differ": Code(
        "notice",
        "the {state} counts {at}, where the loop or the optimizer counts {step}",
        "Normal where it is stepped once an epoch or once in several micro-batches; else the parts are of two saves.",
        "make sure that this is how your loop counts",
    ),
    "step-mismatch-name": Code(
        "error",
        "the name says step {named}, the content {step}",
        "The folder was renamed or its files come from another one.",
        "look at both folders, or " + OLDER,
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
        OLDER,
    ),
    "weights-dtype": Code(
        "notice",
        "config.json says {told}, and no weight is of that type ({held})",
        "A loader that follows config.json rounds the weights, or the file is from another save.",
        "compare with the config of this checkpoint, or name the data type when loading",
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
    "moments-missing": Code(
        "warning",
        "the optimizer names {weights} weights and has moments of none",
        "It is as after a reset: the first resumed loss is equal, then it jumps while the moments build up again.",
        RETRAIN,
    ),
    "moments-few": Code(
        "notice",
        "{lacking} of the optimizer's {weights} weights have no moments",
        "Normal for weights that never got a gradient (an unused layer); else their moments are lost.",
        "see whether the model has that many unused weights; if not, " + OLDER,
    ),
    "optimizer-count": Code(
        "error",
        "the optimizer has {optimizer} weights, the {what} {weights}",
        "They are not of the same model: loading fails, or moments go to the wrong weights.",
        OLDER,
    ),
    "optimizer-shapes": Code(
        "error",
        "the optimizer has moments of shape {shape}, which no weight has",
        "They are not of the same model: the first resumed step fails or corrupts the weights.",
        OLDER,
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
