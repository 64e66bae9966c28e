#include <math.h>

#include "ddp.h"

static const double PI = 3.14159265358979323846;

double ddp_cosine_schedule(int64_t step, int64_t warmup, int64_t total,
                           double peak, double floor)
{
	if (step >= total)
		return floor;
	if (step < warmup)
		return peak * (double)(step > 0 ? step : 0) / (double)warmup;
	double done = (double)(step - (warmup > 0 ? warmup : 0)) /
	              (double)(total - (warmup > 0 ? warmup : 0));
	return floor + 0.5 * (peak - floor) * (1.0 + cos(PI * done));
}
