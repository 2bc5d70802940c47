/* The kernels for any processor. */

#define KERNELS packio_portable
#include "kernels/all.h"
