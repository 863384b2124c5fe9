"""Text from outside, as it was given."""

from trueup.types.codes import GivenCode
from trueup.wording.phrase import Phrase

PHRASES = {GivenCode.TEXT: Phrase(sentence="{text}", samples=({"text": "as given"},))}
