"""FrogTorch: a PyTorch distributed backend over a network shared memory.

``torch.distributed.init_process_group("frogtorch")`` is all a script needs: torch loads the backend by its entry
point. Where plug-ins are switched off (``TORCH_DEVICE_BACKEND_AUTOLOAD=0``), call :func:`register` first.
"""

__version__ = "0.1.0"


def register() -> None:
    """Make the backend ``frogtorch`` known to torch.distributed. Twice is once."""
    from frogtorch.process_group import register as registration

    registration()


def _autoload() -> None:
    """What torch calls at the end of ``import torch``; an exception here would make that fail for everybody."""
    try:
        register()
    except Exception as error:
        import warnings

        warnings.warn(f"the frogtorch backend was not registered: {error!r}", RuntimeWarning, stacklevel=2)
