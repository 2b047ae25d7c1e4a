"""Untracked files of a working tree: which of them may be code."""

from __future__ import annotations

import os
import pwd
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpctrain.launch.git import Git, GitError

_MOST_LISTED_BYTES = 4 * 2**20
# They hold what is no code: an environment, a run of hpctrain.
_MARKS_OF_DIRECTORIES = {"pyvenv.cfg": "an environment", "spec.pkl": "a run"}
_ALL = "all untracked files"
# Of files and directories of programs, of formats of keys, and what people call their own.
_SECRET = re.compile(
    r"\.(ssh|aws|azure|boto|docker|dockercfg|envrc|gcloud|gnupg|htpasswd|kaggle|kube|my\.cnf|netrc"
    r"|npmrc|oci|password-store|pgpass|pypirc|s3cfg|terraform\.d|vault-token|git-credentials)"
    r"|_netrc|gcloud|id_(rsa|dsa|ecdsa|ed25519)([^a-z].*)?"
    r"|.*\.(pem|key|p12|pfx|pkcs12|jks|keystore|kdbx|ppk|gpg|asc|keytab|ovpn|tfstate|tfvars)"
    r"|\.env(\..*)?|.+\.env|secrets?|credentials?"
)
_WORD_OF_SECRET = re.compile(
    r"(?<![a-z])(secrets?|passw(or)?ds?|passphrases?|credentials?|(api|private|access)[._-]?keys?)"
    r"(?![a-z])|(^|[._-])token(\.(txt|json|ya?ml))?$"
)


def list_untracked(
    git: Git, top: str, without: Sequence[str]
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the untracked files that git does not ignore, and what is left out and why.

    Not collective. Files of a crowded directory, as programs write them, are the last ones.

    Parameters
    ----------
    git, top
        As in `hpctrain.launch.code_diff.diff_tracked`.
    without
        Directories below it whose files are no code.
    """
    if _has_home(top):
        return [], [(_ALL, "the home directory is in the tree")]
    patterns = [f"--exclude=/{_escape(folder)}/" for folder in without]
    try:
        if _are_hidden(git):
            return [], [(_ALL, "status.showUntrackedFiles is 'no' in the configuration of git")]
        answer = git.run(
            *("ls-files", "--others", "--exclude-standard", "-z", "--exclude=__pycache__/"),
            *patterns,
            most_bytes=_MOST_LISTED_BYTES,
        )
    except GitError as error:
        return [], [(_ALL, str(error))]
    paths = [path for path in os.fsdecode(answer).split("\0") if path]
    marked = {
        f"{folder}/": what
        for path in paths
        if (what := _MARKS_OF_DIRECTORIES.get(os.path.basename(path)))
        and (folder := os.path.dirname(path))
    }
    left_out = dict(marked)
    found = []
    for path in paths:
        if any(f"{folder}/" in marked for folder in _above(path)):
            continue
        if path.endswith("/"):
            left_out[path] = "a repository of its own"
        elif (secret := find_secret(path)) is not None:
            left_out[secret] = "its name suggests a secret"
        else:
            found.append(path)
    return _least_crowded_first(found), list(left_out.items())


def find_secret(path: str) -> str | None:
    """Return the part of a path, from its beginning, whose name suggests a secret. Pure.

    Parameters
    ----------
    path
        Of a file.

    Returns
    -------
    str or None
        The file, or a directory with a slash at its end; None if no name does.

    Examples
    --------
    >>> find_secret("home/.ssh/config")
    'home/.ssh/'
    >>> find_secret("conf/db_password.txt")
    'conf/db_password.txt'
    >>> find_secret("tokenizer.py") is None
    True
    """
    *folders, name = path.split("/")
    for number, folder in enumerate(folders, start=1):
        if _SECRET.fullmatch(folder.lower()):
            return "".join(f"{each}/" for each in folders[:number])
    is_secret = _SECRET.fullmatch(name.lower()) or _WORD_OF_SECRET.search(name.lower())
    return path if is_secret else None


def _has_home(top: str) -> bool:
    """Return whether a tree is the home directory of this user, or it is below it."""
    homes = {os.path.expanduser("~")}
    try:
        homes.add(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        # A user without an entry, as in containers.
        pass
    tree = Path(os.path.realpath(top))
    return any(
        tree in (home, *home.parents)
        for home in (Path(os.path.realpath(each)) for each in homes if os.path.isabs(each))
    )


def _are_hidden(git: Git) -> bool:
    """Return whether the user's git shows no untracked files, as where most are not its own."""
    # All of the configuration: git config --default, for one name, is of git 2.18.
    settings = os.fsdecode(git.run("config", "--null", "--list")).split("\0")
    values = [
        value
        for name, _, value in (setting.partition("\n") for setting in settings)
        if name == "status.showuntrackedfiles"
    ]
    return bool(values) and values[-1].lower() in ("no", "false", "off", "0")


def _least_crowded_first(paths: Sequence[str]) -> list[str]:
    """Return paths by the number of files below their first directory, then beside them."""
    beside = Counter(os.path.dirname(path) for path in paths)
    below = Counter(path.split("/", 1)[0] for path in paths if "/" in path)

    def crowd(path: str) -> tuple[int, int, str]:
        first, slash, _ = path.partition("/")
        folder = os.path.dirname(path)
        return (below[first] if slash else beside[""]), beside[folder], folder

    return sorted(paths, key=crowd)


def _above(path: str) -> Iterator[str]:
    path = path.removesuffix("/")
    while path := os.path.dirname(path):
        yield path


def _escape(folder: str) -> str:
    """Return a path as a pattern of ``.gitignore`` that stands for it alone."""
    return "".join(f"\\{letter}" if letter in "\\*?[ " else letter for letter in folder)
