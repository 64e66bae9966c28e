/* SPDX-License-Identifier: Apache-2.0 */
/* gil: a thread waits without Python's global lock. */
#pragma once

#include <Python.h>

namespace slurm_ddp {

/*
 * Whether this thread has the GIL. PyGILState_Check() says yes in every thread as soon as a program has made a
 * subinterpreter, and a thread that gives back a GIL that it does not have ends the process. Until Python 3.11, the
 * first function returns the state of whichever thread has the GIL.
 */
inline bool has_gil()
{
#if PY_VERSION_HEX >= 0x030d0000
	const PyThreadState *state = PyThreadState_GetUnchecked();
#else
	const PyThreadState *state = _PyThreadState_UncheckedGet();
#endif
	return state != nullptr && state == PyGILState_GetThisThreadState();
}

/*
 * Gives back the GIL, if this thread has it, as long as the guard lives. Whatever waits for other ranks has such a
 * guard, because the other ranks may wait for what another thread of this process does in Python. Callers cannot see
 * to it: the last reference to a group may go in any thread, and releases of torch differ in which functions they call
 * with the GIL.
 */
class WithoutGil {
 public:
	WithoutGil()
	{
		if (Py_IsInitialized() && has_gil())
			saved_ = PyEval_SaveThread();
	}
	~WithoutGil()
	{
		if (saved_ != nullptr)
			PyEval_RestoreThread(saved_);
	}
	WithoutGil(const WithoutGil &) = delete;
	WithoutGil &operator=(const WithoutGil &) = delete;

 private:
	PyThreadState *saved_ = nullptr;
};

} // namespace slurm_ddp
