#!/bin/sh
# Find or install nginx for the test of a federation's door. Never fails: without one it is skipped.
PATH=$PATH:/usr/sbin
if found=$(command -v nginx); then
  echo "nginx: $found"
  exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  # The package starts a server on port 80 where this file does not forbid it.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
  fi
  get() { DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install -qq -y --no-install-recommends nginx-light; }
  if get >/dev/null 2>&1 || { timeout 120 apt-get update -qq && get; } >/dev/null 2>&1; then
    echo "nginx: installed Debian's nginx-light"
    exit 0
  fi
fi
echo "nginx: none could be had; the test that needs it is skipped"
