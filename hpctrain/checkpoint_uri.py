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
        If the scheme is another one, or the URI of a file has a host or a query.
    """
    from urllib.parse import unquote, urlsplit

    # A run may have '#' in its name.
    parts = urlsplit(uri, allow_fragments=False)
    if parts.scheme == "":
        return "file", uri
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ConfigError(
                f"Checkpoint.{method}({uri!r}): {parts.netloc!r} is a host there, and a checkpoint "
                f"is a directory that all nodes see. For an absolute path use three slashes."
            )
        if parts.query:
            raise ConfigError(
                f"Checkpoint.{method}({uri!r}): '?' begins a query. Use %3F for one in a path."
            )
        return "file", unquote(parts.path)
    if parts.scheme != "memory":
        raise ConfigError(
            f"Checkpoint.{method}({uri!r}): a checkpoint is a directory that all nodes see. "
            f"Copy it to such a filesystem, and use its path or a file:// URI."
        )
    return "memory", ""
