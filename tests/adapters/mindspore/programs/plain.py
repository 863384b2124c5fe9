"""Three plain training steps."""

from tests.adapters.mindspore.loops import classic_optimizer

classic_optimizer()
