# SPDX-License-Identifier: Apache-2.0
# lib.sh: what check-gpu and the run of a kit share: where libraries are, and what is kept.
# shellcheck shell=bash

# library_folder NAME: its folder, or "" where the system finds it: CUDA's, NCCL's or those of Python's packages
library_folder()
{
	local folder
	[ "$(ldconfig -p 2>/dev/null | grep -cF "$1")" = 0 ] || return 0
	{
		printf '%s\n' "${CUDA_HOME:-/usr/local/cuda}"/{lib64,lib} "${NCCL_HOME:-/usr/local/nccl}"/lib
		"${PYTHON:-python3}" -c 'import glob, sys
for path in sys.path:
    for folder in glob.glob(path + "/nvidia/*/lib"):
        print(folder)' 2>/dev/null
	} | while read -r folder; do
		[ ! -e "$folder/$1" ] || { echo "$folder"; break; }
	done
}

# name_nccl: sets DDP_NCCL, if nothing has, to an NCCL that the system does not find
name_nccl()
{
	local folder
	folder=$(library_folder libnccl.so.2)
	[ -z "$folder" ] || export DDP_NCCL=${DDP_NCCL:-$folder/libnccl.so.2}
}

# keep_results FOLDER: also as one file, GPU_ARCHIVE (FOLDER.tar.gz), which is there in full at each time
keep_results()
{
	local archive=${GPU_ARCHIVE:-$1.tar.gz}
	mkdir -p "$(dirname "$archive")" &&
		tar -czf "$archive.new" -C "$(dirname "$1")" "$(basename "$1")" && mv "$archive.new" "$archive"
}
