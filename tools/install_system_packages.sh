#!/bin/sh
# Install the system packages that some tests use, where that is possible: as root, on a system
# with apt-get. Elsewhere, and if it fails, those tests are skipped and say so.
set -u

# $1 package, $2 what is tested with it
install() {
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "$1 is not installed (apt-get install $1): $2 will not be tested"
        return
    fi
    echo "installing $1 to test $2"
    [ -n "${updated:-}" ] || apt-get update -qq >/dev/null || true
    updated=1
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" \
        >/dev/null 2>&1 || echo "$1 could not be installed: $2 will not be tested"
}

ldconfig -p 2>/dev/null | grep -q 'libturbojpeg\.so\.0' \
    || install libturbojpeg0 "the decoders jpeg4py and turbojpeg"
command -v chromium >/dev/null || command -v google-chrome >/dev/null \
    || install chromium "the pages of packio view in a browser"
command -v chromedriver >/dev/null \
    || install chromium-driver "the pages of packio view in a browser, clicked through"
command -v clang >/dev/null || install clang "what clang makes of the native core"
command -v aarch64-linux-gnu-gcc >/dev/null \
    || install gcc-aarch64-linux-gnu "the native core on ARM"
[ -e /usr/aarch64-linux-gnu/include/stdlib.h ] \
    || install libc6-dev-arm64-cross "the native core on ARM"
command -v qemu-aarch64 >/dev/null || install qemu-user "the native core on ARM"
command -v strace >/dev/null || install strace "writes that fail, and the order of syncs"
command -v bindfs >/dev/null || install bindfs "file systems in user space, as networks' may be"
