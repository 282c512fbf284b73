#!/bin/sh
# Find or install a browser for the tests of the HTML report. Never fails: without one they are skipped.
# Usage: browser.sh PYTHON, the interpreter that has playwright.
for name in chromium chromium-browser google-chrome google-chrome-stable; do
  if found=$(command -v "$name"); then
    echo "browser: $found"
    exit 0
  fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  get() { DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install -qq -y --no-install-recommends chromium; }
  if get >/dev/null 2>&1 || { timeout 120 apt-get update -qq && get; } >/dev/null 2>&1; then
    echo "browser: installed Debian's chromium"
    exit 0
  fi
fi
if timeout 300 "$1" -m playwright install chromium >/dev/null 2>&1; then
  echo "browser: installed playwright's chromium"
else
  echo "browser: none could be had; the tests that need one are skipped"
fi
