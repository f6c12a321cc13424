"""Files that a benchmark keeps, so that it goes on where it ended. Each has a note beside it of what it was made of: a file of the
same name may hold something else by now."""
import hashlib


def _note(kept):
    return kept.with_name(kept.name + ".made-of")


def _sum(files):
    sums = []
    for file in files:
        with open(file, "rb") as data:
            sums.append(hashlib.sha256(data.read()).hexdigest())
    return "\n".join(sums) + "\n"


def is_current(kept, files):
    """Whether `kept` is there, and was made of what `files` hold now."""
    return kept.exists() and _note(kept).exists() and _note(kept).read_text() == _sum(files)


def keep(part, kept, files):
    """Gives `part`, which was made of `files`, its name."""
    _note(kept).write_text(_sum(files))
    part.rename(kept)
