"""FrogTorch: a PyTorch distributed backend over a network shared memory.

``torch.distributed.init_process_group("frogtorch")`` is all a script needs: torch loads the backend by its entry
point. Where plug-ins are switched off (``TORCH_DEVICE_BACKEND_AUTOLOAD=0``), call :func:`register` first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from frogtorch import hooks as hooks
    from frogtorch.options import Options as Options

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "Options":
        from frogtorch.options import Options

        return Options
    if name == "hooks":
        import frogtorch.hooks as hooks

        return hooks
    raise AttributeError(f"module 'frogtorch' has no attribute {name!r}")


def register() -> None:
    """Make the backend ``frogtorch`` known to torch.distributed. Twice is once."""
    import torch.distributed as dist

    if dist.is_available() and "frogtorch" not in dist.Backend.backend_list:
        dist.Backend.register_backend("frogtorch", _create, extended_api=True, devices=["cpu"])


def _create(opts: Any, pg_options: Any) -> Any:
    # Only now: a script that does not use the backend does not wait for it to load.
    from frogtorch.process_group import create

    return create(opts, pg_options)


def _autoload() -> None:
    """What torch calls at the end of ``import torch``; an exception here would make that fail for everybody."""
    try:
        register()
    except Exception as error:
        import warnings

        warnings.warn(f"the frogtorch backend was not registered: {error!r}", RuntimeWarning, stacklevel=2)
