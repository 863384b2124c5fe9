"""What programs import from here, by trueup."""

from trueup import PrecisionDebugger, seed_all
from trueup.capture.debugger import module_dump, module_dump_end

__all__ = ["PrecisionDebugger", "module_dump", "module_dump_end", "seed_all"]
