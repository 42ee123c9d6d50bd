#!/bin/sh
# Makes the images of this folder anew, and sizes.txt with what qemu-img says
# of each. Needs qemu-img and qemu-io (Debian: qemu-utils).
set -eu
cd "$(dirname "$0")"
here=$PWD
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/good" "$tmp/refused"

# image NAME OPTIONS SIZE: an image with 12 KiB of data at 64 KiB. Data lies
# behind the tables, so that the file ends with a whole cluster.
image() {
	qemu-img create -q -f qcow2 -o "$2" "$1" "$3"
	qemu-io -f qcow2 -c 'write -q -P 0x5a 64k 12k' "$1"
}

cd "$tmp/good"
image v2.qcow2 compat=0.10 64M
image v3.qcow2 compat=1.1 64M
image cluster512.qcow2 cluster_size=512 1M
image cluster2M.qcow2 cluster_size=2M 10G
image extended-l2.qcow2 cluster_size=16k,extended_l2=on 1G
image lazy-refcounts.qcow2 lazy_refcounts=on,cluster_size=4k 8M
image refcount1.qcow2 refcount_bits=1,cluster_size=4k 8M
image metadata.qcow2 cluster_size=4k,preallocation=metadata 128k
image large.qcow2 cluster_size=64k 2T
image snapshot.qcow2 cluster_size=4k 8M
qemu-img snapshot -c before snapshot.qcow2
qemu-io -c 'write -q -P 0xa5 1M 4k' snapshot.qcow2
qemu-img convert -c -O qcow2 -o compression_type=zlib v3.qcow2 zlib.qcow2
qemu-img convert -c -O qcow2 -o compression_type=zstd v3.qcow2 zstd.qcow2
truncate -s 64K zero.raw

cd "$tmp/refused"
truncate -s 1M base.raw
image bitmap.qcow2 cluster_size=4k 8M
qemu-img bitmap --add bitmap.qcow2 changes
image overlay.qcow2 cluster_size=4k,backing_file=base.raw,backing_fmt=raw 1M
image datafile.qcow2 cluster_size=4k,data_file=data.raw 1M
qemu-img create -q -f qcow2 --object secret,id=k,data=k \
	-o cluster_size=4k,encrypt.format=aes,encrypt.key-secret=k encrypted.qcow2 1M
# An image with lazy reference counts is dirty while it is written to: killing
# the writer leaves it so.
qemu-img create -q -f qcow2 -o lazy_refcounts=on,cluster_size=4k dirty.qcow2 8M
qemu-io -c 'write -q 0 4k' -c flush -c 'sigraise 9' dirty.qcow2 2>/dev/null || true
qemu-img create -q -f qcow v1.qcow 1M
qemu-img create -q -f vmdk sparse.vmdk 1M
qemu-img create -q -f vmdk -o subformat=monolithicFlat flat.vmdk 1M
qemu-img create -q -f vdi disk.vdi 1M
qemu-img create -q -f vpc dynamic.vhd 1M
qemu-img create -q -f vpc -o subformat=fixed,force_size=on fixed.vhd 1M
qemu-img create -q -f vhdx disk.vhdx 1M
qemu-img create -q -f qed disk.qed 1M
qemu-img create -q -f parallels disk.hdd 1M
rm -f base.raw data.raw flat-flat.vmdk

cd "$tmp/good"
for f in *; do
	echo "$f $(qemu-img info --output=json "$f" | sed -n 's/^ *"virtual-size": \([0-9]*\),*$/\1/p')"
done >"$here/sizes.txt"
cd "$tmp"
rm -rf "$here/good" "$here/refused"
truncate -s %512 good/* refused/*
gzip -9n good/* refused/*
mv good refused "$here"
