"""A PyTorch program, run without a GPU: nothing is computed, and each byte that it would ask for is counted.

:mod:`.watch` sees each op and each storage, :mod:`.ledger` counts them, :mod:`.places` tracks where the program is, and
:mod:`.roles` what each block is for. :mod:`.calls`, :mod:`.composite`, :mod:`.autocast` and :mod:`.cuda` let the program see
the GPU that is not there, and decide as on it. This room imports PyTorch.
"""
