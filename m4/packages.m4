dnl SPDX-License-Identifier: Apache-2.0
# The packages that slurm-ddp uses. Each macro takes --with-NAME[=DIR|yes|no]
# (default: use it if it is there), defines HAVE_NAME and NAME_CFLAGS,
# NAME_LIBS, and leaves a line for configure's summary.

# _DDP_PREFIX_FLAGS(NAME, DIR): search flags for a package under DIR
AC_DEFUN([_DDP_PREFIX_FLAGS], [
  $1_CFLAGS="-I$2/include"
  AS_IF([test -d "$2/lib64"], [$1_LIBS="-L$2/lib64"], [$1_LIBS="-L$2/lib"])
])

# _DDP_PACKAGE(NAME, name, header, library, function, package hint, flags for DIR)
AC_DEFUN([_DDP_PACKAGE], [
  $1_CFLAGS=
  $1_LIBS=
  ddp_$2=no
  AS_CASE(["$with_$2"], [no], [], [yes|check], [],
    [m4_default([$7], [_DDP_PREFIX_FLAGS([$1], [$with_$2])])])
  AS_VAR_IF([with_$2], [no], [ddp_$2_summary="off (--without-$2)"], [
    ddp_save_CPPFLAGS=$CPPFLAGS
    ddp_save_LIBS=$LIBS
    CPPFLAGS="$CPPFLAGS $$1_CFLAGS"
    LIBS="$$1_LIBS $LIBS"
    AC_CHECK_HEADER([$3], [
      m4_ifblank([$4], [ddp_$2=yes],
        [AC_CHECK_LIB([$4], [$5], [ddp_$2=yes; $1_LIBS="$$1_LIBS -l$4"])])])
    CPPFLAGS=$ddp_save_CPPFLAGS
    LIBS=$ddp_save_LIBS
    AS_VAR_IF([ddp_$2], [yes], [ddp_$2_summary=yes], [
      AS_CASE(["$with_$2"], [check], [ddp_$2_summary="not found ($6)"],
        [AC_MSG_ERROR([--with-$2 was given, but $3 or its library was not found ($6)])])])
  ])
  AC_SUBST([$1_CFLAGS])
  AC_SUBST([$1_LIBS])
])

# _DDP_SLURM_FOUND: which release was found, and in which folder. slurm_version.h
# holds 0x160508 for 22.05.8; the compiler prints the path of each header.
AC_DEFUN([_DDP_SLURM_FOUND], [
  ddp_save_CPPFLAGS=$CPPFLAGS
  CPPFLAGS="$CPPFLAGS $SLURM_CFLAGS"
  AC_COMPUTE_INT([ddp_slurm_number], [SLURM_VERSION_NUMBER], [[#include <slurm/slurm.h>]],
    [AC_MSG_ERROR([slurm/slurm.h does not compile or does not say its version; config.log has the reason])])
  AC_LANG_CONFTEST([AC_LANG_SOURCE([[#include <slurm/spank.h>]])])
  ddp_slurm_folder=`($CPP $CPPFLAGS conftest.$ac_ext | sed -n 's|^# 1 "\(.*\)/slurm/spank\.h".*|\1|p' | head -n 1) 2>/dev/null`
  rm -f conftest.$ac_ext
  CPPFLAGS=$ddp_save_CPPFLAGS
  ddp_slurm_version=`printf '%d.%02d.%d' "$(($ddp_slurm_number >> 16))" "$(($ddp_slurm_number >> 8 & 255))" "$(($ddp_slurm_number & 255))"`
  ddp_slurm_summary="for Slurm $ddp_slurm_version, headers in ${ddp_slurm_folder:-an unknown folder}"
])

# Slurm's headers hold declarations without prototypes, of which compilers warn
# unless the folder is one of the system's. /usr's is, and named by -isystem it
# would come before the compiler's own.
AC_DEFUN([DDP_WITH_SLURM], [
  AC_ARG_WITH([slurm], [AS_HELP_STRING([--with-slurm=DIR], [build the SPANK plugin against Slurm in DIR])
AS_HELP_STRING([--without-slurm], [do not build the SPANK plugin])],
    [], [with_slurm=check])
  AC_REQUIRE([AC_PROG_CPP])
  AS_CASE([$with_slurm], [no|yes|check], [],
    [AS_IF([test -f "$with_slurm/include/slurm/spank.h"], [],
      [AC_MSG_ERROR([--with-slurm: there is no $with_slurm/include/slurm/spank.h (libslurm-dev or slurm-devel)])])])
  _DDP_PACKAGE([SLURM], [slurm], [slurm/spank.h], [], [], [libslurm-dev or slurm-devel],
    [AS_CASE([$with_slurm], [/usr|/usr/], [], [SLURM_CFLAGS="-isystem $with_slurm/include"])])
  AS_VAR_IF([ddp_slurm], [yes], [_DDP_SLURM_FOUND])
  AM_CONDITIONAL([HAVE_SLURM], [test "x$ddp_slurm" = xyes])
  AC_ARG_WITH([spankdir],
    [AS_HELP_STRING([--with-spankdir=DIR], [where the plugin goes (LIBDIR/slurm-ddp)])],
    [spankdir=$withval], [spankdir='${libdir}/slurm-ddp'])
  AC_SUBST([spankdir])
])

AC_DEFUN([DDP_WITH_PMIX], [
  AC_ARG_WITH([pmix], [AS_HELP_STRING([--with-pmix=DIR], [wire ranks up by PMIx in DIR])
AS_HELP_STRING([--without-pmix], [wire ranks up without PMIx])],
    [], [with_pmix=check])
  AS_CASE([$with_pmix], [check|yes],
    [PKG_CHECK_EXISTS([pmix], [
      PMIX_PC_CFLAGS=`$PKG_CONFIG --cflags pmix`
      PMIX_PC_LIBS=`$PKG_CONFIG --libs pmix`
      CPPFLAGS="$CPPFLAGS $PMIX_PC_CFLAGS"])])
  _DDP_PACKAGE([PMIX], [pmix], [pmix.h], [pmix], [PMIx_Init], [libpmix-dev or pmix-devel])
  AM_CONDITIONAL([HAVE_PMIX], [test "x$ddp_pmix" = xyes])
  AS_VAR_IF([ddp_pmix], [yes], [AC_DEFINE([HAVE_PMIX], [1], [PMIx is there])])
])

AC_DEFUN([DDP_WITH_UCX], [
  AC_ARG_WITH([ucx], [AS_HELP_STRING([--with-ucx=DIR], [communicate between nodes through UCX in DIR])
AS_HELP_STRING([--without-ucx], [communicate on one node only])],
    [], [with_ucx=check])
  # Its own headers do not compile with our warnings, unless they are the system's.
  _DDP_PACKAGE([UCX], [ucx], [ucp/api/ucp.h], [ucp], [ucp_worker_create], [libucx-dev or ucx-devel],
    [_DDP_PREFIX_FLAGS([UCX], [$with_ucx])
    AS_CASE([$with_ucx], [/usr|/usr/], [], [UCX_CFLAGS="-isystem $with_ucx/include"])])
  AS_VAR_IF([ddp_ucx], [yes], [
    UCX_LIBS="$UCX_LIBS -lucs"
    AC_DEFINE([HAVE_UCX], [1], [UCX is there])])
  AM_CONDITIONAL([HAVE_UCX], [test "x$ddp_ucx" = xyes])

  AC_ARG_ENABLE([nccl-net], [AS_HELP_STRING([--enable-nccl-net],
    [build libnccl-net-ddpucx.so, NCCL's network over UCX, too])], [], [enable_nccl_net=no])
  ddp_netplugin_summary="left out: --enable-nccl-net builds libnccl-net-ddpucx.so"
  AS_VAR_IF([enable_nccl_net], [yes], [
    AS_VAR_IF([ddp_ucx], [yes], [], [AC_MSG_ERROR([--enable-nccl-net needs UCX: install libucx-dev or ucx-devel])])
    ddp_netplugin_summary="yes, libnccl-net-ddpucx.so"])
  AM_CONDITIONAL([HAVE_NCCL_NET], [test "x$enable_nccl_net" = xyes])
])

# OpenBLAS first: as fast as oneDNN on large matrices, faster on small ones. Its
# header of 0.3.34 defines a macro that config.h has, too; as a system's it may.
# Without both, products are the kernels' own, which are slow.
AC_DEFUN([DDP_WITH_BLAS], [
  AC_ARG_WITH([blas], [AS_HELP_STRING([--with-blas=openblas|onednn], [library for matrix products])
AS_HELP_STRING([--without-blas], [use matrix products of our own, which are slow])],
    [], [with_blas=check])
  ddp_blas=no
  BLAS_CFLAGS=
  BLAS_LIBS=
  AS_CASE([$with_blas], [check|yes|openblas],
    [PKG_CHECK_MODULES([OPENBLAS], [openblas], [
      ddp_blas=openblas
      BLAS_CFLAGS=`AS_ECHO([" $OPENBLAS_CFLAGS"]) | sed 's/ -I */ -isystem /g'`
      BLAS_LIBS=$OPENBLAS_LIBS
      AC_DEFINE([HAVE_OPENBLAS], [1], [OpenBLAS gives sgemm])], [:])])
  AS_IF([test $ddp_blas = no], [AS_CASE([$with_blas], [check|yes|onednn],
    [AC_CHECK_HEADER([oneapi/dnnl/dnnl.h],
      [AC_CHECK_LIB([dnnl], [dnnl_sgemm], [
        ddp_blas=onednn
        BLAS_LIBS=-ldnnl
        AC_DEFINE([HAVE_ONEDNN], [1], [oneDNN gives sgemm])])])])])
  ddp_blas_summary=$ddp_blas
  AS_IF([test $ddp_blas = no], [AS_CASE([$with_blas],
    [no], [ddp_blas_summary="built in, slow (--without-blas)"],
    [check], [ddp_blas_summary="built in, slow (OpenBLAS and oneDNN not found: libopenblas-dev or libdnnl-dev)"],
    [AC_MSG_ERROR([--with-blas=$with_blas was given, but it was not found (libopenblas-dev or libdnnl-dev)])])])
  AC_SUBST([BLAS_CFLAGS])
  AC_SUBST([BLAS_LIBS])
])

# For convolutions, whatever gives matrix products. Its threads have to be OpenMP's, as ours
# are. After AC_OPENMP.
AC_DEFUN([DDP_WITH_ONEDNN], [
  AC_ARG_WITH([onednn], [AS_HELP_STRING([--with-onednn], [fail if oneDNN 2 or 3 is not there for convolutions])
AS_HELP_STRING([--without-onednn], [do convolutions without oneDNN])],
    [], [with_onednn=check])
  ONEDNN_LIBS=
  ddp_onednn_summary="built in (--without-onednn)"
  AS_VAR_IF([with_onednn], [no], [], [
    AC_CACHE_CHECK([for oneDNN 2 or 3 on OpenMP], [ddp_cv_onednn], [
      ddp_save_LIBS=$LIBS
      ddp_save_CFLAGS=$CFLAGS
      LIBS="-ldnnl $LIBS"
      CFLAGS="$CFLAGS $OPENMP_CFLAGS"
      AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <oneapi/dnnl/dnnl.h>
        #if (DNNL_VERSION_MAJOR != 2 && DNNL_VERSION_MAJOR != 3) || \
        	DNNL_CPU_THREADING_RUNTIME != DNNL_RUNTIME_OMP || !defined(_OPENMP)
        #error not this one
        #endif]], [[dnnl_engine_t engine;
        return dnnl_engine_create(&engine, dnnl_cpu, 0) + (int)dnnl_memory_desc_get_size(NULL);]])],
        [ddp_cv_onednn=yes], [ddp_cv_onednn=no])
      LIBS=$ddp_save_LIBS
      CFLAGS=$ddp_save_CFLAGS])
    AS_IF([test $ddp_cv_onednn = yes], [
      ddp_onednn_summary=oneDNN
      ONEDNN_LIBS=-ldnnl
      AC_DEFINE([HAVE_ONEDNN_CONVOLUTION], [1], [oneDNN gives convolutions])],
      [test "x$with_onednn" = xcheck],
      [ddp_onednn_summary="built in (oneDNN 2 or 3 on OpenMP not found: libdnnl-dev)"],
      [AC_MSG_ERROR([--with-onednn was given, but oneDNN 2 or 3 on OpenMP was not found (libdnnl-dev)])])])
  AC_SUBST([ONEDNN_LIBS])
])

# The toolkit is for the module libddp_cuda.so alone. CUDA's runtime is linked into it,
# so that a node needs no more than the driver.
AC_DEFUN([DDP_WITH_CUDA], [
  AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda=DIR], [build the module for GPUs with the CUDA toolkit in DIR (/usr/local/cuda)])
AS_HELP_STRING([--without-cuda], [do not build the module for GPUs])],
    [], [with_cuda=check])
  ddp_cuda=no
  CUDA_CFLAGS=
  CUDA_LIBS=
  ddp_cuda_dir=$with_cuda
  AS_CASE([$with_cuda], [no], [], [yes|check], [
    ddp_cuda_dir=/usr
    AS_IF([test -f /usr/local/cuda/include/cuda_runtime_api.h], [ddp_cuda_dir=/usr/local/cuda])],
    [AS_IF([test -f "$with_cuda/include/cuda_runtime_api.h"], [],
      [AC_MSG_ERROR([--with-cuda: there is no $with_cuda/include/cuda_runtime_api.h (CUDA toolkit)])])])
  AS_VAR_IF([with_cuda], [no], [ddp_cuda_summary="off (--without-cuda)"], [
    # Its headers do not compile with our warnings, unless they are the system's.
    AS_CASE([$ddp_cuda_dir], [/usr|/usr/], [],
      [CUDA_CFLAGS="-isystem $ddp_cuda_dir/include"
      CUDA_LIBS="-L$ddp_cuda_dir/lib64 -L$ddp_cuda_dir/lib"])
    CUDA_LIBS="$CUDA_LIBS -lcudart_static -ldl -lrt -lpthread"
    ddp_save_CPPFLAGS=$CPPFLAGS
    ddp_save_LIBS=$LIBS
    CPPFLAGS="$CPPFLAGS $CUDA_CFLAGS"
    LIBS="$CUDA_LIBS $LIBS"
    AC_MSG_CHECKING([for the CUDA toolkit in $ddp_cuda_dir])
    AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <cuda.h>
#include <cuda_runtime_api.h>
#if CUDART_VERSION < 11030
#error CUDA is too old
#endif]], [[return cudaFree(0) != cudaSuccess;]])], [ddp_cuda=yes])
    AC_MSG_RESULT([$ddp_cuda])
    AS_VAR_IF([ddp_cuda], [yes], [
      AC_COMPUTE_INT([ddp_cuda_number], [CUDART_VERSION], [[#include <cuda_runtime_api.h>]])
      ddp_cuda_summary="$(($ddp_cuda_number / 1000)).$(($ddp_cuda_number % 1000 / 10)) in $ddp_cuda_dir, as a module"])
    CPPFLAGS=$ddp_save_CPPFLAGS
    LIBS=$ddp_save_LIBS
    AS_IF([test $ddp_cuda = no], [
      CUDA_CFLAGS=
      CUDA_LIBS=
      AS_CASE([$with_cuda],
        [check], [ddp_cuda_summary="no toolkit of 11.3 or later found (--with-cuda=DIR): libddp runs on hosts only"],
        [AC_MSG_ERROR([--with-cuda was given, but there is no CUDA toolkit of 11.3 or later in $ddp_cuda_dir, with include/cuda.h, include/cuda_runtime_api.h and libcudart_static.a; config.log has the reason])])])
  ])
  AC_SUBST([CUDA_CFLAGS])
  AC_SUBST([CUDA_LIBS])
  AM_CONDITIONAL([HAVE_CUDA], [test $ddp_cuda = yes])
])

# nvcc compiles kernels/cuda into a module, which needs cuBLASLt.
AC_DEFUN([DDP_CUDA_KERNELS], [
  AC_ARG_ENABLE([cuda-kernels],
    [AS_HELP_STRING([--enable-cuda-kernels], [fail if nvcc is not there to compile kernels/cuda])
AS_HELP_STRING([--disable-cuda-kernels], [do not compile kernels/cuda])],
    [], [AS_IF([test "x$enable_sanitizer" = xno], [enable_cuda_kernels=check], [enable_cuda_kernels=no])])
  ddp_cuda_kernels=no
  NVCC=no
  AS_CASE([$enable_cuda_kernels/$with_cuda], [no/*|*/no], [ddp_cuda_kernels_summary=off],
    [AS_CASE([$with_cuda], [/*], [AC_PATH_PROG([NVCC], [nvcc], [no], [$with_cuda/bin])],
      [AC_PATH_PROG([NVCC], [nvcc], [no], [$PATH$PATH_SEPARATOR/usr/local/cuda/bin])])
    AS_VAR_IF([NVCC], [no], [ddp_cuda_kernels_summary="none: nvcc was not found (--with-cuda=DIR)"], [
      ddp_nvcc_dir=`AS_DIRNAME(["$NVCC"])`/..
      AS_IF([test ! -f "$ddp_nvcc_dir/include/cublasLt.h" && test ! -f /usr/include/cublasLt.h],
          [ddp_cuda_kernels_summary="none: there is no cublasLt.h beside $NVCC (libcublas-dev-VERSION or libcublas-devel-VERSION)"],
        ["$NVCC" --list-gpu-arch 2>/dev/null | grep compute_90 >/dev/null],
          [ddp_cuda_kernels=yes
          ddp_cuda_kernels_summary="sm_80, sm_90 and later, by $NVCC"],
        [ddp_cuda_kernels_summary="none: $NVCC does not know sm_90 (CUDA 11.8 or later is needed)"])
      NVCC_LIBS="-L$ddp_nvcc_dir/lib64 -L$ddp_nvcc_dir/lib -lcudart_static -lstdc++ -lpthread -lrt -ldl"
      CUBLAS_LIBS="-Wl,-rpath,$ddp_nvcc_dir/lib64 -Wl,-rpath,$ddp_nvcc_dir/lib -lcublas"])
    AS_IF([test "$enable_cuda_kernels/$ddp_cuda_kernels" = yes/no],
      [AC_MSG_ERROR([--enable-cuda-kernels was given, but kernels for CUDA: $ddp_cuda_kernels_summary])])])
  AC_SUBST([NVCC_LIBS])
  AC_SUBST([CUBLAS_LIBS])
  AM_CONDITIONAL([HAVE_CUDA_KERNELS], [test $ddp_cuda_kernels = yes])
])

AC_DEFUN([DDP_WITH_NCCL], [
  AC_ARG_WITH([nccl], [AS_HELP_STRING([--with-nccl=DIR], [look for the header of NCCL in DIR])
AS_HELP_STRING([--without-nccl], [do not look for it; libddp loads NCCL where it runs])],
    [], [with_nccl=check])
  ddp_save_nccl_CPPFLAGS=$CPPFLAGS
  CPPFLAGS="$CPPFLAGS $CUDA_CFLAGS"
  _DDP_PACKAGE([NCCL], [nccl], [nccl.h], [], [], [libnccl-dev])
  CPPFLAGS=$ddp_save_nccl_CPPFLAGS
  AS_IF([test "x$ddp_nccl" = xyes],
    [ddp_nccl_summary="found; libddp loads it where it runs"],
    [ddp_nccl_summary="not needed to build; libddp loads it where it runs"])
])
