"""`torch.compile(model, backend="orchestrion")`, and what belongs to it.

The backend is found by its entry point: programs need not import this package. See `docs/torch-compile.md`.
"""

from orchestrion.torch._backend import Options, backend
from orchestrion.torch._export import export
from orchestrion.torch._report import GraphReport, report, reports

__all__ = ["GraphReport", "Options", "backend", "export", "report", "reports"]
