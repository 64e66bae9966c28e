/* Matrix products by OpenBLAS or oneDNN, cut into one piece of c per thread. */
#include <stdatomic.h>

#include "kernels.h"

static _Atomic(const char *) failure;

const char *dk_failure(void)
{
	return atomic_load(&failure);
}

#ifdef HAVE_OPENBLAS
#include <cblas.h>
#include <pthread.h>

static void stay_in_this_thread(void)
{
	openblas_set_num_threads(1);
}

static void prepare(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, stay_in_this_thread);
}

static void product(const dk_gemm_args *g)
{
	cblas_sgemm(CblasRowMajor, g->transpose_a ? CblasTrans : CblasNoTrans,
	            g->transpose_b ? CblasTrans : CblasNoTrans, (blasint)g->m, (blasint)g->n,
	            (blasint)g->k, 1.0f, g->a, (blasint)g->lda, g->b, (blasint)g->ldb, g->beta,
	            g->c, (blasint)g->ldc);
}
#else
#include <oneapi/dnnl/dnnl.h>

static void prepare(void)
{
}

/* oneDNN's threads are OpenMP's: none of its own below dk_parallel(). */
static void product(const dk_gemm_args *g)
{
	dnnl_status_t status = dnnl_sgemm(g->transpose_a ? 'T' : 'N', g->transpose_b ? 'T' : 'N',
	                                  g->m, g->n, g->k, 1.0f, g->a, g->lda, g->b, g->ldb,
	                                  g->beta, g->c, g->ldc);

	if (status == dnnl_out_of_memory)
		atomic_store(&failure, "oneDNN's matrix product ran out of memory");
	else if (status != dnnl_success)
		atomic_store(&failure, "oneDNN's matrix product refused its arguments");
}
#endif

static void rows_span(void *arg, int64_t first, int64_t last)
{
	dk_gemm_args g = *(const dk_gemm_args *)arg;

	g.a += g.transpose_a ? first : first * g.lda;
	g.c += first * g.ldc;
	g.m = last - first;
	product(&g);
}

static void columns_span(void *arg, int64_t first, int64_t last)
{
	dk_gemm_args g = *(const dk_gemm_args *)arg;

	g.b += g.transpose_b ? first * g.ldb : first;
	g.c += first;
	g.n = last - first;
	product(&g);
}

/* The longer side is cut: each piece packs all of the other operand anew. */
void dk_gemm(const dk_gemm_args *args)
{
	enum { GRAIN = 48 }; /* a multiple of the usual kernels' tiles */
	dk_gemm_args g = *args;

	prepare();
	if (g.m >= g.n)
		dk_parallel(g.m, GRAIN, rows_span, &g);
	else
		dk_parallel(g.n, GRAIN, columns_span, &g);
}
