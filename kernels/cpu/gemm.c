/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products: large ones by AVX-512 (product.h) where the processor has it, others by OpenBLAS or
   oneDNN or, without both, by slow code here. Those are cut into one piece of c per thread. */
#include <stdatomic.h>

#include "cpu/cpu.h"
#include "cpu/inner.h"
#include "cpu/numbers.h"
#include "cpu/product.h"
#include "vec.h"

static _Atomic(const char *) failure;

const char *dk_cpu_failure(void)
{
	return atomic_load(&failure);
}

void dk_cpu_fail(const char *why)
{
	atomic_store(&failure, why);
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
#elif defined(HAVE_ONEDNN)
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
		dk_cpu_fail("oneDNN's matrix product ran out of memory");
	else if (status != dnnl_success)
		dk_cpu_fail("oneDNN's matrix product refused its arguments");
}
#else
enum {
	ROWS = 2,                    /* of c at a time */
	PANEL_VECTORS = 4, PANEL = PANEL_VECTORS * VF, /* columns of b, copied into one run */
	DEPTH = 256                  /* rows of b in such a copy */
};

static void prepare(void)
{
}

/* Columns from `column` on of rows from `row` on; zero beyond the last column. */
static void copy_panel(const dk_gemm_args *g, int64_t row, int64_t depth, int64_t column,
                       float panel[DEPTH][PANEL])
{
	for (int64_t l = 0; l < depth; l++) {
		for (int64_t j = 0; j < PANEL; j++) {
			const int64_t k = row + l, n = column + j;
			panel[l][j] = n >= g->n ? 0 : g->transpose_b ? g->b[n * g->ldb + k] : g->b[k * g->ldb + n];
		}
	}
}

/* Adds to so many rows of c, from `first` on, what the panel gives. */
static void add_rows(const dk_gemm_args *g, int64_t first, int64_t rows, int64_t row, int64_t depth,
                     int64_t column, float panel[DEPTH][PANEL])
{
	const int64_t down = g->transpose_a ? 1 : g->lda, along = g->transpose_a ? g->lda : 1;
	const int64_t columns = dk_smaller(PANEL, g->n - column);
	const float *a[ROWS];
	vf sums[ROWS][PANEL_VECTORS] = { { { 0 } } };

	/* A row too many is a row twice. */
	for (int64_t r = 0; r < ROWS; r++)
		a[r] = g->a + (first + dk_smaller(r, rows - 1)) * down + row * along;
	for (int64_t l = 0; l < depth; l++) {
		for (int r = 0; r < ROWS; r++) {
			for (int v = 0; v < PANEL_VECTORS; v++)
				sums[r][v] += vf_load(&panel[l][v * VF]) * a[r][l * along];
		}
	}
	for (int64_t r = 0; r < rows; r++) {
		float *c = g->c + (first + r) * g->ldc + column;
		for (int64_t j = 0; j < columns; j++) {
			const float before = row > 0 ? c[j] : g->beta != 0 ? g->beta * c[j] : 0;
			c[j] = before + sums[r][j / VF][j % VF];
		}
	}
}

static void product(const dk_gemm_args *g)
{
	float panel[DEPTH][PANEL];

	for (int64_t column = 0; column < g->n; column += PANEL) {
		for (int64_t row = 0; row == 0 || row < g->k; row += DEPTH) {
			const int64_t depth = dk_smaller(DEPTH, g->k - row);
			copy_panel(g, row, depth, column, panel);
			for (int64_t i = 0; i < g->m; i += ROWS)
				add_rows(g, i, dk_smaller(ROWS, g->m - i), row, depth, column, panel);
		}
	}
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

/* ---- what is done on a product's way, in passes of its own ------------------------------ */

/* Numbers that are worth a thread of their own. */
enum { PASS_GRAIN = 16384 };

static int64_t row_grain(int64_t width)
{
	return width < PASS_GRAIN ? PASS_GRAIN / width : 1;
}

static void bias_span(void *arg, int64_t first, int64_t last)
{
	const dk_product_args *p = arg;
	const int64_t width = p->gemm.n;

	dk_inner()->bias_rows(p->gemm.c + first * width, p->residual != NULL ? p->residual + first * width : NULL, p->bias,
	                      last - first, width);
}

static void sums_span(void *arg, int64_t first, int64_t last)
{
	const dk_product_args *p = arg;

	dk_inner()->column_sums(p->sums, p->gemm.b, p->gemm.k, p->gemm.ldb, first, last);
}

static void done_span(void *arg, int64_t first, int64_t last)
{
	const dk_product_args *p = arg;

	p->done(p->user, first, last - first, 0, p->gemm.n);
}

/* The longer side is cut: each piece packs all of the other operand anew. */
static void product_by_library(const dk_gemm_args *args)
{
	enum { GRAIN = 48 }; /* a multiple of the usual kernels' tiles */
	dk_gemm_args g = *args;

	prepare();
	if (g.m >= g.n)
		dk_parallel(g.m, GRAIN, rows_span, &g);
	else
		dk_parallel(g.n, GRAIN, columns_span, &g);
}

void dk_cpu_product(const dk_product_args *args)
{
	dk_product_args p = *args;

	if (dk_product(args))
		return;
	if (p.sums != NULL)
		dk_parallel(p.gemm.n, 64, sums_span, &p);
	if (p.bias != NULL) {
		dk_parallel(p.gemm.m, row_grain(p.gemm.n), bias_span, &p);
		p.gemm.beta = 1;
	}
	product_by_library(&p.gemm);
	if (p.done != NULL)
		dk_parallel(p.gemm.m, row_grain(p.gemm.n), done_span, &p);
}

void dk_cpu_gemm(const dk_gemm_args *args)
{
	dk_cpu_product(&(dk_product_args){.gemm = *args});
}
