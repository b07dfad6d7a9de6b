# shellcheck shell=bash
# Pythons of several versions, where tox finds each by its name. Sourced; uses $cache and .ci/debian.sh.

# A Python of a version: one that is here, else Debian's own, unpacked. python_of VERSION RELEASE...
python_of() {
    local version=$1 release directory
    shift
    .ci/find-python "$version" "/usr/bin/python$version" "python$version" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version".*/bin/python3 2>/dev/null && return
    for release; do
        directory=$(unpack "$release" "python$version-venv") && wrap "$directory" "usr/bin/python$version" "python$version" && return
    done
    return 1
}

# Where tox finds each by its name: pythons VERSION RELEASE...
pythons() {
    local program
    program=$(python_of "$@") || return 1
    mkdir -p "$cache/bin"
    rm -f "$cache/bin/python$1" # of an earlier run: what it leads to must not be written to
    # No link: an environment is told that its home is where the link is, where an unpacked Python has no library.
    printf '#!/bin/sh\nexec "%s" "$@"\n' "$(command -v "$program")" >"$cache/bin/python$1"
    chmod +x "$cache/bin/python$1"
}

# every_python: all that are supported; says which cannot be had
every_python() {
    pythons 3.11
    pythons 3.12
    pythons 3.13 trixie
    pythons 3.14 forky sid
    local version
    for version in 3.11 3.12 3.13 3.14; do
        [ -x "$cache/bin/python$version" ] || echo "There is no Python $version here: its environments are skipped" >&2
    done
}
