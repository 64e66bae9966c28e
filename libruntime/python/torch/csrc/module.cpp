/* SPDX-License-Identifier: Apache-2.0 */
/* module: what Python calls: it makes process groups, and closes them at the end of the process. */
#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>

#include "backend.h"

using namespace slurm_ddp;

static intrusive_ptr<Base> create(const intrusive_ptr<c10d::Store> &store, int rank, int size, milliseconds timeout,
                                  const std::string &backend, const std::string &group, const std::vector<int> &ranks,
                                  bool open_later)
{
	if (open_later) {
		Group later;
		later.is_world = ranks.empty();
		return c10::make_intrusive<Backend>(backend, store, rank, size, timeout, later);
	}
	return c10::make_intrusive<Backend>(backend, store, rank, size, timeout,
	                                    open_group(store, rank, size, timeout, group, ranks));
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module)
{
	const py::call_guard<py::gil_scoped_release> without_gil;

	/* Functions with c10d's types need their bindings. */
	py::module::import("torch.distributed");
	module.def("create", create, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
	           py::arg("backend"), py::arg("group"), py::arg("ranks"), py::arg("open_later") = false, without_gil);
	module.def("leave_all", leave_all, py::arg("reason"), without_gil);
	module.def("close_all", close_all, py::arg("reason"), without_gil);
	module.def("libddp_version", ddp_version);
}
