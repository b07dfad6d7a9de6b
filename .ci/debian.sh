# shellcheck shell=bash
# Programs of newer Debian releases, without installing them: a package and every library it needs are unpacked into
# the cache and run through that directory's own dynamic loader. Needs no root and touches nothing of the system.
# Sourced by .ci/run; uses $cache.

# The mirror this machine uses for its own release, as an address.
debian_mirror() {
    local release
    release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    apt-get indextargets --format '$(REPO_URI)' "Release: $release" "Component: main" 2>/dev/null | grep -m 1 '/debian/*$'
}

# apt of another release, with state and downloads of its own: apt_of RELEASE apt-get ...
apt_of() {
    local state=$cache/apt-$1 tool=$2
    shift 2
    "$tool" -o Dir::State="$state" -o Dir::State::status="$state/status" -o Dir::Cache="$state/cache" \
        -o Dir::Etc::SourceList="$state/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null -o Dir::Log="$state" \
        -o APT::Sandbox::User="$(id -un)" -o APT::Install-Recommends=false -o APT::Keep-Downloaded-Packages=true \
        -o Acquire::Retries=3 -o Acquire::Check-Valid-Until=false "$@" # a mirror may be a snapshot; signatures hold
}

# unpack RELEASE PACKAGE: prints the directory the package and its libraries are unpacked in.
unpack() {
    local release=$1 package=$2 directory=$cache/$1-$2 state=$cache/apt-$1 mirror deb
    if [ ! -e "$directory/.complete" ]; then
        mirror=$(debian_mirror) && [ -n "$mirror" ] || { echo "this machine uses no Debian mirror" >&2; return 1; }
        rm -rf "$directory" "$state"
        mkdir -p "$directory" "$state/lists/partial" "$state/cache/archives/partial"
        : >"$state/status" # as on a machine with nothing installed, so that every library is fetched
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $release main" >"$state/sources.list"
        apt_of "$release" apt-get -qq update >&2 || return 1
        apt_of "$release" apt-get -qq --yes --download-only install "$package" >&2 || return 1
        for deb in "$state"/cache/archives/*.deb; do dpkg-deb --extract "$deb" "$directory" || return 1; done
        rm -rf "$state" "$directory"/usr/share/{doc,man,locale}
        touch "$directory/.complete"
    fi
    echo "$directory"
}

# wrap DIRECTORY PROGRAM NAME: a script of that name beside the program that runs it with the directory's libraries;
# prints its path.
wrap() {
    local directory=$1 program=$2 name=$3 loader library
    loader=$(find "$directory" -name 'ld-linux*.so.*' -print -quit)
    library=$(dirname "$(find "$directory" -name 'libc.so.6' -print -quit)")
    if [ "$(basename "$program")" = "$name" ]; then
        [ -e "$directory/$program.bin" ] || mv "$directory/$program" "$directory/$program.bin"
        program=$program.bin
    fi
    name=$(dirname "$directory/$program")/$name
    rm -f "$name"
    cat >"$name" <<END
#!/bin/sh
exec "$loader" --library-path "$library" --argv0 "\$0" "$directory/$program" "\$@"
END
    chmod +x "$name"
    echo "$name"
}
