"""What a verdict, or the origin of a difference, rests on."""

from trueup.types.codes.base import Code


class EvidenceCode(Code):
    """``target`` and ``reference`` are what the two runs have."""

    # causes
    SETTING_DIFFERS = "evidence.setting_differs"
    OPTIMIZER_SETTING_DIFFERS = "evidence.optimizer_setting_differs"
    PARAMETERS_ABSENT = "evidence.parameters_absent"
    INPUT_OF_ONE_SIDE = "evidence.input_of_one_side"
    BUFFER_DIFFERS = "evidence.buffer_differs"
    BUFFERS_WRITTEN = "evidence.buffers_written"
    """places ``name``, ``side`` (the run that has it)"""
    ID_BEYOND = "evidence.id_beyond_the_vocabulary"
    ARGUMENTS_DIFFER = "evidence.arguments_differ"
    ARGUMENT_DIFFERS = "evidence.argument_differs"
    DTYPES_DIFFER = "evidence.dtypes_differ"
    CODE_DIFFERS = "evidence.code_differs"
    """``function`` has other statements; ``target`` and ``reference``: those that differ"""
    CODE_WRAPPED = "evidence.code_wrapped"
    """on one ``side`` another function calls the other's"""
    CODE_OF_ONE_SIDE = "evidence.code_of_one_side"
    CODE_CALLS_ANOTHER = "evidence.code_calls_another"
    """one name stands for another function of a library"""
    CODE_VALUE_DIFFERS = "evidence.code_value_differs"
    COMPUTED_BY = "evidence.computed_by"
    """``functions`` and ``modules`` (classes with numbers) that compute in other dtypes"""
    # size of the difference
    SIZE = "evidence.size"
    SIZE_OF = "evidence.size_of"
    NOT_FINITE = "evidence.not_finite"
    COMMON_FACTOR = "evidence.common_factor"
    NORMS = "evidence.norms"
    EXTREMES = "evidence.extremes"
    SCALAR_DIFFERS = "evidence.scalar_differs"
    # why it is an origin, or is not
    INPUTS_BIT_IDENTICAL = "evidence.inputs_bit_identical"
    INPUTS_AGREE = "evidence.inputs_agree"
    INPUTS_EXPLAIN = "evidence.inputs_explain"
    INPUTS_DIFFER_ALREADY = "evidence.inputs_differ_already"
    # what else differs
    FIRST_BEYOND = "evidence.first_beyond"
    """``dtype``: the coarser of two; ``site``: the first record whose difference it does not explain"""
    NONE_BEYOND = "evidence.none_beyond"
    NO_OTHER = "evidence.no_other"
    OTHERS = "evidence.others"
    # what was compared
    COMPARED = "evidence.compared"
    COMPARED_AND_AGREE = "evidence.compared_and_agree"
    NOT_COMPARED = "evidence.not_compared"
    PHASES_NOT_COMPARED = "evidence.phases_not_compared"
    CAPTURE_DIFFERS = "evidence.capture_differs"
    SAME_MATHEMATICS = "evidence.same_mathematics"
    WITHOUT_COUNTERPART = "evidence.without_counterpart"
    FIRST_OF_COMPARED = "evidence.first_of_compared"
    NOT_BRACKETED = "evidence.not_bracketed"
    # preceding records
    PRECEDING_NONE = "evidence.preceding_none"
    PRECEDING_BIT_IDENTICAL = "evidence.preceding_bit_identical"
    PRECEDING = "evidence.preceding"
    ALL_AGREE = "evidence.all_agree"
