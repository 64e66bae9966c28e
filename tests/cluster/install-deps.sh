#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nodes: 0
# slurm/install-deps on a machine that has nothing, played by programs that
# stand in for apt and dpkg.
. "$source/tests/cluster/lib.sh"

mkdir "$work/bin"
printf '#!/bin/sh\nexit 1\n' >"$work/bin/dpkg-query"
cp "$work/bin/dpkg-query" "$work/bin/apt-get"
# Goes on writing after the line that matters, as apt-cache does, and knows no
# package called lintian.
cat >"$work/bin/apt-cache" <<'END'
#!/bin/bash
[ "$1" = depends ] && { echo "  Depends: clang-99"; exit; }
if [ "$2" = lintian ]; then candidate='(none)'; else candidate=1.0; fi
printf '%s:\n  Installed: (none)\n  Candidate: %s\n  Version table:\n' "$2" "$candidate"
sleep 0.1
yes '     1.0 500' | head -n 20000
END
chmod 755 "$work/bin"/*
deps() { PATH=$work/bin:$PATH "$source/slurm/install-deps" "$@"; }

capture deps --check
status_is 1 "--check fails where something is missing"
prints '^missing: .*slurm-wlm .*libucx-dev' "and lists it"
prints_not 'clang|lintian|python3-torch' "but not what only tests use"
capture deps --check --tests
prints 'clang .*libclang-rt-99-dev' "--tests adds clang with the sanitizers of its version"
for package in gdb locales python3-torch libtorch-dev pybind11-dev python3-setuptools python3-pip openmpi-bin libopenmpi-dev build-essential debhelper dpkg-dev rpm rpmlint; do
	prints "[ :]$package( |\$)" "and $package, which can be had"
done
prints_not 'lintian' "a package that cannot be had is not asked for"
capture deps --check --nonsense
status_is 2 "an unknown option is a wrong usage"
done_testing
