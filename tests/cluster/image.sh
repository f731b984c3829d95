#!/usr/bin/env bash
# Creates an image of a program built for tests, with its libraries, under two names, so that
# tests can upgrade to the second: image.sh PROGRAM OUT.tar
set -euo pipefail
. "$(dirname "$0")/env.sh"
python3 "$KC_OCI" -t "$KC_IMAGE" -t "$KC_IMAGE_NEXT" -o "$2" -e /leno -u 1500:1500 --with-libs --dir tmp \
  --link usr/local/bin/leno=/leno "$1:leno" > /dev/null
