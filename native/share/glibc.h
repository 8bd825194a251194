/*
 * Sharing works by what glibc's loader does: preloading, versions of dlsym, link maps as handles. musl's does not; its
 * programs would start, and no limit would hold. So there is no library for it: said here, and not found out later.
 */
#ifndef BATUTA_SHARE_GLIBC_H
#define BATUTA_SHARE_GLIBC_H

#include <features.h>

#ifndef __GLIBC__
#error "batuta share needs glibc: with musl (Alpine) limits would not hold; use an image that is based on glibc"
#endif

#endif
