"""URIs of checkpoints: of a directory, or of this process's memory."""

from __future__ import annotations

from hpctrain.errors import ConfigError


def split_uri(uri: str, method: str) -> tuple[str, str]:
    """Return the scheme and the path of a URI; a path without a scheme is one of a file.

    Not collective. The scheme is "file", or "memory" with an empty path.

    Parameters
    ----------
    uri
        As a user gave it.
    method
        Of `Checkpoint`, for the error.

    Raises
    ------
    ConfigError
        If the scheme is another one.
    """
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(uri)
    if parts.scheme in ("", "file"):
        return "file", unquote(parts.path) if parts.scheme else uri
    if parts.scheme != "memory":
        raise ConfigError(
            f"Checkpoint.{method}({uri!r}): a checkpoint is a directory that all nodes see. "
            f"Copy it to such a filesystem, and use its path or a file:// URI."
        )
    return "memory", ""
