#!/bin/sh
# Makes the two images that the demo serves: real file systems, one in a qcow2
# image and one in a raw file that is mostly holes. Needs e2fsprogs, qemu-utils and
# zstd. The result is committed, so nobody needs these to build.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export E2FSPROGS_FAKE_TIME=1700000000

# make NAME SIZE: an ext4 file system of that size with one file in it
make() {
	mkdir -p "$work/$1/etc"
	echo "This is $1, edition 1." >"$work/$1/etc/motd"
	find "$work/$1" -exec touch -d @1700000000 {} +
	mke2fs -q -t ext4 -O ^has_journal -m 0 -L "$1" -d "$work/$1" \
		-U 6846a0b2-0000-4000-8000-000000000000 -E hash_seed=6846a0b2-0000-4000-8000-000000000000,root_owner=0:0 \
		"$work/$1.raw" "$2"
}

make parrot 16M
qemu-img convert -f raw -O qcow2 "$work/parrot.raw" "$work/parrot.qcow2"
make desert 64M
zstd -q -19 -f -o parrot.qcow2.zst "$work/parrot.qcow2"
zstd -q -19 -f -o desert.raw.zst "$work/desert.raw"
