"""A server for one predictor: in this process, or in a run, as a job."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain import timeouts
from hpctrain.backend import BackendConfig
from hpctrain.checkpoint import Checkpoint
from hpctrain.config import RunConfig, ScalingConfig
from hpctrain.control import interfaces
from hpctrain.data.optional import require
from hpctrain.errors import ConfigError, TrainingFailedError
from hpctrain.function_run import FunctionRun
from hpctrain.log import log
from hpctrain.plan.spec import WorkerSpec
from hpctrain.predict.predictor import Predictor
from hpctrain.serve.app import make_app
from hpctrain.serve.model import ServedModel
from hpctrain.worker.context import active_worker, report, should_stop

if TYPE_CHECKING:
    import uvicorn

LOOPBACK = "127.0.0.1"
_BACKLOG = 2048
_REPORT_INTERVAL_S = 5.0
_LOOK_INTERVAL_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Service:
    """What is served, and to whom. Travels to the rank that serves."""

    checkpoint: Path
    predictor_cls: type[Predictor]
    predictor_kwargs: Mapping[str, Any]
    token: str | None
    """What requests have to carry; None lets in everybody who reaches the port."""
    host: str | None = LOOPBACK
    """Address to listen on; None is that of the node."""
    port: int = 0
    """0 is any that is free."""

    def __post_init__(self) -> None:
        """Check who could reach it."""
        if self.token is None and not is_loopback(self.host):
            raise ConfigError(
                f"host={self.host or 'of the node'!r} can be reached by other users, and no token "
                f"is asked for. Keep the token, or listen on {LOOPBACK}."
            )

    def model(self) -> ServedModel:
        """Return the model, not loaded yet. Not collective."""
        checkpoint = Checkpoint(self.checkpoint)
        return ServedModel(
            lambda: self.predictor_cls.from_checkpoint(checkpoint, **self.predictor_kwargs),
            name=f"{self.predictor_cls.__name__} of {checkpoint.path.name}",
        )


def new_token() -> str:
    """Return an unguessable token. Not collective."""
    return secrets.token_urlsafe(32)


def is_loopback(host: str | None) -> bool:
    """Return whether only this machine reaches an address. Not collective."""
    if host is None:
        return False
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def serve(service: Service, *, on_url: Callable[[str], None]) -> None:
    """Serve in this process, until SIGINT or SIGTERM.

    Not collective.

    Parameters
    ----------
    service
        What, and to whom.
    on_url
        Called with the address once the port is open.

    Raises
    ------
    ConfigError
        If the port is taken, or the checkpoint cannot be loaded.
    """
    with _listening(service) as (model, server, listener, url):
        on_url(url)
        server.run(sockets=[listener])
    if model.error is not None:
        raise model.error


def serve_in_run(config: Mapping[str, Any]) -> dict[str, Any]:
    """Serve as the training function of a run, until it is cancelled or its time is over.

    Collective; a run of one rank. Reports the address and the number of requests.
    """
    service: Service = config["service"]
    active_worker("serve_in_run()")
    with _listening(service) as (model, server, listener, url):
        # Signals belong to the rank; a server in another thread leaves them alone.
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        reported_at = -_REPORT_INTERVAL_S
        was_ready = False
        while not should_stop():
            # First: the server ends after it.
            if model.error is not None:
                raise model.error
            if not thread.is_alive():
                raise TrainingFailedError(f"the server of {url} has ended by itself; see the log.")
            is_due = time.monotonic() - reported_at >= _REPORT_INTERVAL_S
            if is_due or model.is_ready != was_ready:
                reported_at, was_ready = time.monotonic(), model.is_ready
                report({"url": url, "ready": was_ready, "requests": model.requests})
            time.sleep(_LOOK_INTERVAL_S)
        server.should_exit = True
        thread.join(timeouts.SERVER_END_S)
    return {"url": url, "requests": model.requests}


class Serving(FunctionRun):
    """The run of a server: one rank, which serves until it is stopped.

    Parameters
    ----------
    service
        What, and to whom.
    scaling_config, run_config
        As in `hpctrain.BaseTrainer`.
    """

    def __init__(
        self,
        service: Service,
        *,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
    ) -> None:
        super().__init__(scaling_config=scaling_config, run_config=run_config)
        self._service = service
        if self.scaling_config.num_workers != 1:
            raise ConfigError(
                f"num_workers={self.scaling_config.num_workers}: a server is one rank. Start more "
                f"of them, each under its own name."
            )

    def _make_worker_spec(self) -> WorkerSpec:
        return WorkerSpec(
            train_loop=serve_in_run,
            train_loop_config={"service": self._service},
            takes_config=True,
            backend_config=BackendConfig(),
        )


@contextmanager
def _listening(
    service: Service,
) -> Iterator[tuple[ServedModel, uvicorn.Server, socket.socket, str]]:
    uvicorn = require("uvicorn", to="to serve a predictor", extra="serve")
    model = service.model()
    app = make_app(model, token=service.token)
    host = service.host or _host_of_node()
    with _bind(host, service.port) as listener:
        port = listener.getsockname()[1]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        from hpctrain.serve.connections import BoundedProtocol

        # The log of a server is no place for what a stranger sends.
        config = uvicorn.Config(
            app,
            log_level="error",
            lifespan="off",
            http=BoundedProtocol,
            ws="none",
            # Then connections are gone, and what is left is a prediction.
            timeout_graceful_shutdown=int(timeouts.SERVER_END_S) + 1,
        )
        server = uvicorn.Server(config)
        model.start()
        threading.Thread(
            target=_end_with_model, args=(model, server), name="hpctrain-model-watch", daemon=True
        ).start()
        yield model, server, listener, url


def _host_of_node() -> str:
    """Return the name of this node, or its address if the name is that of a loopback here."""
    hostname = socket.gethostname()
    named = interfaces.address_of_name(hostname)
    # Debian and Ubuntu have 127.0.1.1 in /etc/hosts.
    if named is not None and not interfaces.is_loopback(named):
        return hostname
    addresses = interfaces.ipv4_addresses().values()
    return next((each for each in addresses if not interfaces.is_loopback(each)), hostname)


def _bind(host: str, port: int) -> socket.socket:
    with ExitStack() as stack:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            )[0]
            listener = stack.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            # Before the address is announced: who connects then waits, and is not refused.
            listener.listen(_BACKLOG)
        except OSError as error:
            raise ConfigError(
                f"nothing can listen on {host} port {port}: {error.strerror or error}. Choose "
                f"another port, or 0 for any that is free."
            ) from error
        stack.pop_all()
    return listener


def _end_with_model(model: ServedModel, server: uvicorn.Server) -> None:
    model.wait_for_failure(load_s=timeouts.SERVED_MODEL_S)
    log(f"the model cannot {'predict any more' if model.is_loaded else 'be loaded'}: {model.error}")
    server.should_exit = True
