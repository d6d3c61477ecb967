"""Runs C and C++ backends of Triton's API (`libtriton_<name>.so`) in a guest, without a compiler.

A backend is a shared object. It exports up to fourteen entry points, and imports functions that the server exports:
`TRITONBACKEND_*` and `TRITONSERVER_*`. This package is that server, as far as one model needs it:

    elf           writes a shared object that exports all functions, each a jump through a table of addresses
    signatures    all functions of the API: arguments, result, and whether they are implemented
    library       loads the written object, fills its table with callbacks, and opens the backend
    handles       what a backend gets in place of pointers to objects: numbers that are checked at each use
    memory        reads and writes at addresses that a backend passed
    core          the objects of one model, shared by the groups of functions
    values, messages, objects, requests, responses, states, metrics, calls, traces
                  the functions, grouped by the objects they work on; one method for each
    execution     runs ModelInstanceExecute on a batch, in place of `naiad_stub.execution`
    model         the lifecycle: from BackendInitialize to BackendFinalize

Everything else of the guest is the same as for a model in Python: the channel, the segments, and the messages. So the
host schedules, supervises and restarts both alike.
"""
