"""English of likely causes of a kind, and of what to do about it."""

from __future__ import annotations

from trueup.types.codes.kinds import AdviceCode, CauseCode
from trueup.wording.phrase import Phrase

_CAUSES = {
    CauseCode.ATOMIC_ADDITIONS: "atomic additions",
    CauseCode.BATCH_AGAIN: "a batch delivered twice",
    CauseCode.BEYOND_RANGE: "values outside the range of the dtype",
    CauseCode.GROUPS_CHOSEN_OTHERWISE: "a router that chooses otherwise: its scores, or a bias added to them",
    CauseCode.LEFT_OUT_IS_LOST: "what an expert has no room for is zero in one run, passed on in the other",
    CauseCode.TRUE_HIDES: "a mask whose True hides is given where True shows, or the other way round",
    CauseCode.DRAWN_ONCE: "one mask drawn for all positions: locked, spatial or per-sample dropout",
    CauseCode.BORDERS_NOT_MASKED: "padding or document boundaries masked in one run alone",
    CauseCode.CACHE_NOT_REFRESHED: "a cache that is not refreshed",
    CauseCode.CAUSAL_MASK: "causal mask missing, extra or off by one",
    CauseCode.CLEARED_UNDER_A_CONDITION: "zero_grad skipped under a condition",
    CauseCode.COARSER_ON_ONE_SIDE: "computed in a lower-precision dtype on one side",
    CauseCode.CONVERTED_FOR_ANOTHER_LAYOUT: "weights converted for a different layout",
    CauseCode.COPY_NOT_UPDATED: "a copy of the weights that is not updated",
    CauseCode.MASTERS_NOT_RELOADED: "weights loaded or changed after the optimizer copied its master weights",
    CauseCode.MASTERS_OF_ROUNDED: "master weights made after the model was cast, or of a file in that dtype",
    CauseCode.CORRUPTED_TRANSFER: "a tensor corrupted in transfer",
    CauseCode.EMPTY_ROW: "a row whose elements are all masked",
    CauseCode.EXCHANGED: "arguments or results exchanged, or one used in place of another",
    CauseCode.KEPT_SHARE: "dropout or a drop path that does not divide what it keeps by the chance to be "
    "kept, or by another one",
    CauseCode.FACTOR_LEFT_OUT: "a factor missing, applied twice or different",
    CauseCode.FAULTY_MEMORY: "faulty memory or a faulty core",
    CauseCode.GRAPH_CUT: "a detach or no_grad in the path",
    CauseCode.COUNTED_WITH_PADDING: "a place counted with the padding, or from the other end",
    CauseCode.INDEX_OFF_BY_ONE: "an index off by one",
    CauseCode.OTHER_FIRST_POSITION: "positions that count from another number: 0, the padding id plus one, "
    "the length of a cache",
    CauseCode.IN_NO_GROUP: "the parameter in no optimizer group",
    CauseCode.KERNEL_CHOICE: "kernels chosen at run time",
    CauseCode.FIRST_TOKEN: "another token to begin rows with (bos_token_id, decoder_start_token_id)",
    CauseCode.NOT_SHARED_OUT: "each process reads a batch of the size that the other run's processes share "
    "(split_batches, per-device or global batch size)",
    CauseCode.CUT_ELSEWHERE: "rows cut at the other end (truncation_side), or windows that begin elsewhere",
    CauseCode.LOG_SOFTMAX: "log_softmax left out, or another loss (one of each class for itself)",
    CauseCode.BALANCE_TERM: "a balance loss with another weight, of other layers, or of one run alone",
    CauseCode.MARGIN_OF_PAIRS: "another margin between the answers of a pair (gamma), or one that beta "
    "multiplies in one run alone",
    CauseCode.WEIGHTS_OF_ROWS: "other weights of the rows (by noise level or length), advantages, margins or "
    "reference log-probabilities",
    CauseCode.PADDING_COUNTED: "padding of the labels not replaced by the ignored index in one run",
    CauseCode.PROMPT_COUNTED: "labels of a prompt left out of the loss in one run alone",
    CauseCode.ID_TAKEN_FOR_PADDING: "labels left out by their id: padding whose id is also the end token's",
    CauseCode.IGNORE_INDEX: "another ignore_index, such as a padding id that is also a token",
    CauseCode.MASK_MULTIPLIED: "attention weights multiplied by a mask",
    CauseCode.OTHER_DIM: "another dim given to the softmax",
    CauseCode.LABELS_COUNTED: "labels or padding masked in one run and counted in the loss of the other",
    CauseCode.LOSS_DIVIDED: "a loss divided (or not divided) by the number of microbatches, ranks or tokens",
    CauseCode.LOGISTIC_SCALE: "the scale of a preference loss (beta), its label smoothing, or a loss "
    "multiplied behind its value",
    CauseCode.LOSS_SCALE: "a loss scale too large or too small",
    CauseCode.LOSS_SCALE_TOO_LARGE: "a loss scale that is too large",
    CauseCode.MINUS_LEFT_OUT: "a minus missing or extra",
    CauseCode.NOT_CLEARED: "gradients not cleared between two updates",
    CauseCode.NOT_IN_A_GROUP: "the parameter is missing from the optimizer's groups",
    CauseCode.NOT_PASSED_ON: "a configuration value not passed on",
    CauseCode.MEMORY_FORMAT: "another memory layout in one run alone (channels_last, a transposed view): "
    "equal generators fill other elements",
    CauseCode.DROPOUT_ON_ONE_SIDE: "dropout (training mode, a rate above 0) in one run alone",
    CauseCode.PREPROCESSING: "a different preprocessing: normalization, channel order, layout, offset",
    CauseCode.TARGETS_MADE: "how the program makes what the loss comes near to: mixing, smoothing, "
    "temperature, scale, prediction type, noise drawn anew",
    CauseCode.NOT_TRAINABLE: "requires_grad set to False",
    CauseCode.NO_MASTER_WEIGHTS: "no float32 master weights",
    CauseCode.NO_STEP: "the optimizer step skipped",
    CauseCode.ORDER_OF_BACKWARDS: "backward passes run, or their gradients sent, in a different order",
    CauseCode.ORDER_OF_SUMS: "a sum in a different order or by a different kernel; not a fault by itself",
    CauseCode.OTHER_FORMULA: "another formula, or another version of it",
    CauseCode.OTHER_DEFAULT: "a default of a different framework or version",
    CauseCode.OTHER_LAYOUT: "a different layout (fused q, k, v; heads; gate and up; rotary pairs)",
    CauseCode.OTHER_OPTIMIZER_DEFAULT: "a default of a different optimizer or framework",
    CauseCode.OTHER_ORDER_OR_KERNEL: "a different order of operations or kernel",
    CauseCode.NOISE_ON_ONE_SIDE: "noise, jitter or dropout in one run alone",
    CauseCode.DRAWN_BEFORE: "random numbers that one run alone draws before",
    CauseCode.OTHER_SEED: "a different seed or order of random draws",
    CauseCode.OTHER_TENSORS: "the optimizer holds different tensors than the model",
    CauseCode.BOUND_OF_OTHER_NUMBERS: "a bound (clamp, floor, dynamic range) that is set otherwise, or "
    "taken of the whole batch and not of each sample",
    CauseCode.LEVELS_DRAWN_OTHERWISE: "times or noise levels drawn otherwise (distribution, range, seed)",
    CauseCode.LOWEST_OF_OTHER_DTYPE: "a mask's lowest number is of another dtype, infinite after a cast",
    CauseCode.RANGE_OF_TOKENS: "an index off by one, or a first token (class token) in one run alone",
    CauseCode.HIDDEN_AT_RANDOM: "stretches hidden at random in one run alone (SpecAugment)",
    CauseCode.OTHER_WINDOW: "an attention window of another length, or in one run alone",
    CauseCode.OTHER_WAY_ROUND: "a rotation or difference in the opposite direction",
    CauseCode.OUTSIDE_THE_GROUP: "a parameter outside the reduced group (tied embedding, router, norm under "
    "sequence parallelism)",
    CauseCode.PARAMETER_GROUPS: "parameter groups built by a different rule",
    CauseCode.PARTIAL_SUM: "a partial sum of a tensor-parallel layer used before its reduction",
    CauseCode.REDUCTION_ORDER: "an order of reduction that changes",
    CauseCode.REPLAYED_AFTER_RESUME: "data repeated or skipped after resume",
    CauseCode.CUT_IN_REFERENCE: "requires_grad set to False, or a detach or no_grad, in the reference alone",
    CauseCode.RESULT_UNUSED: "a result that the loss does not use",
    CauseCode.SAMPLE_ORDER: "a different order of samples",
    CauseCode.SCHEDULE_OFF: "a schedule off by one step",
    CauseCode.SECOND_OPTIMIZER_NOT_CLEARED: "a second optimizer whose gradients are not cleared",
    CauseCode.SAMPLER_OF_RANK: "the ranks' samplers: another seed, shard, number of ranks or state on some "
    "(all ranks must shuffle with one seed)",
    CauseCode.SHARD_OR_SEED: "a different shard or seed of the sampler",
    CauseCode.SHARED_STREAM: "one random stream shared by the ranks",
    CauseCode.SHIFTED_TWICE_OR_NEVER: "labels or positions shifted twice or not at all",
    CauseCode.STATE_NOT_RESTORED: "random state not restored for recomputation",
    CauseCode.STATE_NOT_RESTORED_ON_RESUME: "the optimizer's state is not restored",
    CauseCode.STATE_ON_RESUME: "optimizer state lost or kept on resume",
    CauseCode.STEP_OF_COMPUTATION: "a step of the computation skipped",
    CauseCode.STEP_SKIPPED: "the gradient scaler found an infinity and skipped the step",
    CauseCode.SUMMED_FOR_AVERAGED: "gradients summed instead of averaged over ranks, or averaged "
    "instead of summed",
    CauseCode.TERM_LEFT_OUT: "a bias, residual or auxiliary term missing or added twice",
    CauseCode.OTHER_USE: "another use of the weight (a tied head, a term of the loss) detached or left "
    "out, or a hook",
    CauseCode.UNSCALED_OR_CLIPPED: "gradients not unscaled, or clipped to a different norm",
    CauseCode.VOCABULARY_TOO_SMALL: "the tokenizer has entries that the embedding has no row for",
    CauseCode.IGNORED_AS_INPUT: "an ignored label (-100) or a padding id used as an input",
    CauseCode.UPCAST_LEFT_OUT: "a missing upcast",
    CauseCode.AUTOCAST_ON_ONE_SIDE: "autocast is on in one run alone, or its dtype differs",
    CauseCode.MODEL_DTYPE: "the model is built, loaded or converted in a different dtype",
    CauseCode.TF32_ON_ONE_SIDE: "one run alone lets its GPU multiply float32 matrices in TF32: allow_tf32, "
    "the matmul precision or NVIDIA_TF32_OVERRIDE",
    CauseCode.SUMS_IN_COARSE_DTYPE: "buffers that gradients are accumulated in have a coarser dtype",
    CauseCode.VIEW_FOR_TRANSPOSE: "a view or reshape instead of a transpose",
    CauseCode.WRAPPER_BYPASSED: "the distributed wrapper bypassed or its synchronization disabled",
}

_ADVICE = {
    AdviceCode.ADD_REDUCTION: "Add the reduction over the named ranks, or let the wrapper own this "
    "parameter.",
    AdviceCode.CAST_TO_FLOAT32: "Compare the dtypes at the named site; cast to float32 there and see "
    "whether the "
    "difference disappears.",
    AdviceCode.CHECK_GROUPS: "Check that every parameter of the model is the very tensor in its "
    "optimizer group.",
    AdviceCode.CHECK_SIGNS: "Check the order of the operands and the signs at the named site.",
    AdviceCode.CLEAR_GRADIENTS: "Call zero_grad once between two optimizer steps, for every optimizer.",
    AdviceCode.COMPARE_LAYOUTS: "Compare the order in which both sides split, view and transpose at "
    "the named site.",
    AdviceCode.COMPARE_SAMPLERS: "Compare the sampler's seed, shard and position on both sides.",
    AdviceCode.COMPARE_FORMULAS: "Compare the lines of both programs that call these functions.",
    AdviceCode.COMPARE_TERMS: "Compare what both sides add up at the named site.",
    AdviceCode.COMPARE_FIRST_POSITIONS: "Compare how both sides make the positions, and at which number they "
    "begin.",
    AdviceCode.COUNT_SHIFTS: "Count the shifts between the data and the named site; labels must be "
    "shifted once.",
    AdviceCode.DETERMINISTIC_KERNELS: "Run both sides with deterministic kernels and compare again.",
    AdviceCode.FOLLOW_THE_GRAPH: "Follow the graph from the loss to the named site and find where it is cut.",
    AdviceCode.LOOK_FOR_FACTOR: "Look for a multiplication or division by this factor in the code of "
    "the named site.",
    AdviceCode.PRINT_GROUPS: "Print the parameter groups of both optimizers and compare them.",
    AdviceCode.PRINT_MASKS: "Print the masks of both sides at the named site and compare them.",
    AdviceCode.REFRESH: "Find what is kept between steps at the named site and refresh it.",
    AdviceCode.RUN_ELSEWHERE: "Run the same step again on this device and on another; a flip does not "
    "recur in "
    "the same place.",
    AdviceCode.RESTORE_STATE: "Let recomputation start from the random state of the forward pass.",
    AdviceCode.SEED_ALIKE: "Use the same seed on both sides, or disable dropout for the comparison.",
    AdviceCode.SET_ARGUMENT: "Set the named argument to the reference's value.",
    AdviceCode.WIDER_RANGE: "Compute this site in a dtype of wider range, or change the loss scale.",
}

PHRASES: dict[CauseCode | AdviceCode, Phrase] = {
    **{code: Phrase(sentence=text) for code, text in _CAUSES.items()},
    **{code: Phrase(sentence=text, command=text) for code, text in _ADVICE.items()},
}
