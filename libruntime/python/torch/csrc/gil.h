/* SPDX-License-Identifier: Apache-2.0 */
/* gil: a thread waits without Python's global lock. */
#pragma once

#include <Python.h>

namespace slurm_ddp {

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
		if (Py_IsInitialized() && PyGILState_Check())
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
