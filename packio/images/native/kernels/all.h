/* All kernels, for the kind of processor that the including file is compiled for. */

#include "../core.h"
#include "crc.h"
#include "idct.h"
#include "scaled.h"
#include "blocks.h"
#include "entropy.h"
#include "expand.h"
#include "scans.h"
#include "walk.h"
#include "colour.h"
#include "resize.h"
#include "render.h"
#include "canvas.h"
#include "tones.h"
#include "places.h"
#include "nearest.h"
#include "mixing.h"
#include "warp.h"
#include "blur.h"
#include "operate.h"

const Kernels KERNELS = {decode, scan, put_kept, expand, expand_whole, compact, walk, crc32c, unstuff, render, operate};
