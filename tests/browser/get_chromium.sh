#!/usr/bin/env bash
# Print the path of a Chromium; install Debian's headless one where there is none. Everything else goes to stderr.
#
# CHROMIUM  the browser to take; nothing is looked for or installed then
#
# Debian's package carries its binary, so a package mirror is all that is needed. Tools that fetch a browser build of their
# own at install time are not used. Ubuntu's package of this name wants snapd: there, install Chrome or set CHROMIUM.
set -euo pipefail

names=(chromium-headless-shell chromium chromium-browser google-chrome google-chrome-stable)

find_browser() {
    local name
    for name in "${names[@]}"; do
        # --version tells a browser from the stub that some systems put there.
        if command -v "$name" >/dev/null && "$name" --version >/dev/null 2>&1; then
            command -v "$name"
            return
        fi
    done
    return 1
}

if [[ -n "${CHROMIUM:-}" ]]; then
    "$CHROMIUM" --version >&2
    echo "$CHROMIUM"
    exit
fi
if find_browser; then
    exit
fi
if ! command -v apt-get >/dev/null; then
    echo "no Chromium found (${names[*]}), and no apt-get to install it: install one, or set CHROMIUM to its path" >&2
    exit 1
fi
root=()
[[ $EUID -eq 0 ]] || root=(sudo -n)
export DEBIAN_FRONTEND=noninteractive
"${root[@]}" apt-get update >&2
"${root[@]}" apt-get install --yes --no-install-recommends chromium-headless-shell fonts-dejavu-core fonts-liberation >&2
find_browser || {
    echo "chromium-headless-shell was installed and does not start" >&2
    exit 1
}
