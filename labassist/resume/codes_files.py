"""What can be wrong with the files of a checkpoint: torn ones, missing states, ranks that are mixed up."""

from __future__ import annotations

from labassist.resume.codes import OLDER, RETRAIN, Code

CODES: dict[str, Code] = {
    # ------------------------------------------------------------------ torn and corrupt
    "never-completed": Code(
        "error",
        "the save was never finished: {why}",
        "The writer died in the middle: some files are from this step, others are missing or half written.",
        OLDER,
    ),
    "file-empty": Code("error", "the file is empty", "Nothing can be loaded from it.", OLDER),
    "file-torn": Code(
        "error",
        "the file is cut or altered: {why}",
        "Loading fails, or worse, gives other numbers than were saved.",
        OLDER,
    ),
    "file-unreadable": Code(
        "error",
        "it cannot be read here: {why}",
        "Nothing is known about its content: it may be whole.",
        "give yourself the right to read it (chmod u+r, for a folder u+rx, or chown) and check again",
    ),
    "crc-mismatch": Code(
        "error",
        "the bytes of {member} are not those that were saved (CRC-32)",
        "torch.load would read it without a word: a weight or a moment would silently be another number.",
        OLDER,
    ),
    "hash-mismatch": Code(
        "error",
        "{why}",
        "The file is not the one that was saved: training would go on from other numbers.",
        OLDER,
    ),
    "sealed": Code(
        "info",
        "every file {what} when run {run} sealed it",
        "Normal: the ledger's SHA-256 of each file was compared.",
        "nothing to do",
    ),
    "unsealed": Code(
        "info",
        "safetensors files have no checksum, and no manifest in a ledger covers this one",
        "A file that is cut is seen, a value that was altered in place is not.",
        "record the run (labassist run), whose ledger keeps a SHA-256 of every file",
    ),
    "written-over": Code(
        "notice",
        "weights, optimizer and random state are not those that run {run} sealed here",
        "Another run wrote over this folder: it may be whole, but it is not that run's checkpoint.",
        "give each run an output folder of its own",
    ),
    "structure-unknown": Code(
        "error",
        "the files are not what their framework writes ({why})",
        "No trainer can load them.",
        OLDER,
    ),
    "json-torn": Code(
        "error", "the file is no whole JSON: {why}", "The trainer cannot read its own state.", OLDER
    ),
    "file-missing": Code(
        "error", "the file is missing: {why}", "What it held is lost, so loading fails or skips it.", OLDER
    ),
    "shard-missing": Code(
        "error",
        "the index names the shard {shard}, which is not there",
        "A part of the model is lost: loading fails.",
        "copy the shard again from where the checkpoint was made, or " + OLDER,
    ),
    "shard-unlisted": Code(
        "error",
        "the index and the shards disagree: {why}",
        "The shards are of two different saves: half of the model is from another step.",
        OLDER,
    ),
    "rank-file-missing": Code(
        "error",
        "the part of rank {rank} is missing",
        "That rank's share of the state is lost: loading fails, or a part starts from nothing.",
        "copy it from the machine that had this rank, or " + OLDER,
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
        "error", "there are no weights", "Training would start over from random or base weights.", OLDER
    ),
    "optimizer-missing": Code(
        "warning",
        "there is no optimizer state",
        "Adam forgets its moments: the first resumed loss is equal, then it jumps while Adam warms up again.",
        RETRAIN,
    ),
    "scheduler-missing": Code(
        "warning",
        "there is no learning-rate scheduler state",
        "The rate starts again: a second warm-up, or a cosine that is shifted.",
        RETRAIN,
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
        RETRAIN,
    ),
    "rng-missing": Code(
        "warning",
        "there is no random-number state",
        "Dropout, shuffling and augmentation draw other numbers: the run goes on, but not as it would have.",
        RETRAIN,
    ),
    "rng-part-missing": Code(
        "warning",
        "the random-number state lacks {part}",
        "What draws from that generator continues differently.",
        RETRAIN,
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
        RETRAIN,
    ),
    "format-limit": Code(
        "notice",
        "{what} the {state} state{why}",
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
        "Each rank sees other samples, and a random state that is filed by rank is not found; with DDP the steps an epoch and the schedule's length change too.",
        "resume with as many processes as before",
    ),
    "zero-world-size": Code(
        "error",
        "ZeRO files of {was} ranks cannot be loaded by {now}",
        "Each rank's optimizer part fits only the same number of ranks: loading fails.",
        "convert with ds_to_universal.py and load with load_universal_checkpoint, or use as many ranks",
    ),
}
