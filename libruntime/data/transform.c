/* SPDX-License-Identifier: Apache-2.0 */
/* From bytes of images to a model's numbers. */
#include "base/error.h"
#include "base/options.h"
#include "splitmix.h"

/* How one image is cut and mirrored. */
struct view {
	int down, right; /* by how much the cut is off the image */
	bool mirrored;
};

static struct view draw(const ddp_image_transform *t, uint64_t number)
{
	const uint64_t bits = dk_splitmix(dk_splitmix(t->seed + DK_SPLITMIX_STEP) + number * DK_SPLITMIX_STEP);
	const uint64_t shifts = 2 * (uint64_t)t->crop_padding + 1;

	return (struct view){
		.down = (int)((bits & 0xffffff) * shifts >> 24) - t->crop_padding,
		.right = (int)((bits >> 24 & 0xffffff) * shifts >> 24) - t->crop_padding,
		.mirrored = t->flip && bits >> 63 != 0,
	};
}

/* out [height, width], of every channels-th number, = values at the bytes of `in`; zero[0] outside. */
static void place_channel(float *out, const unsigned char *in, const float *values, const ddp_image_shape *s,
                          struct view v)
{
	for (int y = 0; y < s->height; y++)
		for (int x = 0; x < s->width; x++, out += s->channels) {
			const int from_y = y + v.down, from_x = (v.mirrored ? s->width - 1 - x : x) + v.right;
			const bool inside = from_y >= 0 && from_y < s->height && from_x >= 0 && from_x < s->width;
			*out = values[inside ? in[from_y * s->width + from_x] : 0];
		}
}

static ddp_status check_transform(const ddp_image_shape *s, const ddp_image_transform *t)
{
	if (s->channels < 1 || s->channels > DDP_IMAGE_CHANNELS_MAX)
		return ddp_fail(DDP_ERR_INVALID, "images of %d channels cannot be transformed: channels must be 1 to %d",
		                s->channels, DDP_IMAGE_CHANNELS_MAX);
	if (s->height < 1 || s->width < 1)
		return ddp_fail(DDP_ERR_INVALID, "images of %d lines and %d columns cannot be transformed: height and width "
		                "must be 1 or more", s->height, s->width);
	if (t->crop_padding < 0 || t->crop_padding > s->height || t->crop_padding > s->width)
		return ddp_fail(DDP_ERR_INVALID, "crop_padding is %d, must be 0 to the image's size", t->crop_padding);
	for (int c = 0; c < s->channels; c++)
		if (!(t->deviation[c] > 0))
			return ddp_fail(DDP_ERR_INVALID, "deviation[%d] is %g, must be above 0", c, t->deviation[c]);
	return DDP_OK;
}

ddp_status ddp_transform_images(const ddp_image_shape *shape, const ddp_image_transform *options,
                                const void *samples, int64_t count, uint64_t first, float *images,
                                int32_t *labels)
{
	if (shape == NULL || ((samples == NULL || images == NULL || labels == NULL) && count > 0))
		return ddp_fail_null("ddp_transform_images", shape == NULL ? "shape" : samples == NULL ? "samples" :
		                     images == NULL ? "images" : "labels");
	const int64_t area = (int64_t)shape->height * shape->width, size = area * shape->channels;
	float values[DDP_IMAGE_CHANNELS_MAX][256];
	ddp_image_transform t = DDP_IMAGE_TRANSFORM;

	ddp_status status = ddp_options_copy("ddp_image_transform", options, &t, sizeof(t));
	if (status == DDP_OK)
		status = check_transform(shape, &t);
	if (status != DDP_OK)
		return status;
	for (int c = 0; c < shape->channels; c++)
		for (int byte = 0; byte < 256; byte++)
			values[c][byte] = ((float)byte / 255 - t.mean[c]) / t.deviation[c];
	for (int64_t i = 0; i < count; i++) {
		const unsigned char *sample = (const unsigned char *)samples + i * (1 + size);
		const struct view v = draw(&t, first + (uint64_t)i);
		labels[i] = sample[0];
		for (int c = 0; c < shape->channels; c++)
			place_channel(images + i * size + c, sample + 1 + c * area, values[c], shape, v);
	}
	return DDP_OK;
}
