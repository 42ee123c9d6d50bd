package need

import "slices"

// Program is a program that tests execute and that a minimal Debian system, or another system, does
// not contain.
type Program struct {
	Name     string
	Packages string // Debian packages, separated by spaces
	Module   string // instead of Packages: a Go program with its version, for "go run"
	NPM      string // instead of Packages: the folder of a package.json
	// Extract is the path of the program in its package, if only this file is copied from it. It is for packages that start
	// a service when they are installed.
	Extract string
	Reason  string // why tests need it, for users; completes "tests use it to …"
}

// Go programs of List.
const (
	// Versitygw is an S3 server. It is not a requirement of this module, because it would add some
	// hundred other modules.
	Versitygw = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
	// Kustomize builds the manifests of examples/kubernetes where kubectl, which includes it, is not
	// installed. It is not a requirement of this module either.
	Kustomize = "sigs.k8s.io/kustomize/kustomize/v5@v5.7.1"
	// NFPM makes packages. It is the version of the Makefile.
	NFPM = "github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2"
)

// List contains the programs in alphabetical order.
var List = []Program{
	{Name: "axe-core", NPM: "testdata/axe", Reason: "find what makes the web page hard to use for some people"},
	{Name: "bzip2", Packages: "bzip2", Reason: "pack images for downloads"},
	{Name: "casync", Packages: "casync", Reason: "compare indexes and chunk stores with those of casync"},
	{Name: "certutil", Packages: "libnss3-tools", Reason: "give the browser an authority and certificates"},
	{Name: "chromium", Packages: "chromium", Reason: "read the web page as people do"},
	{Name: "cryptsetup", Packages: "cryptsetup-bin", Reason: "write and check LUKS2 images"},
	{Name: "curl", Packages: "curl", Reason: "call the HTTP API and upload as users do"},
	{Name: "fusermount3", Packages: "fuse3", Reason: "mount a file system that injects faults, as an ordinary user"},
	{Name: "gcc", Packages: "gcc libc6-dev", Reason: "build the tests with the race detector"},
	{Name: "git", Packages: "git", Reason: "make checkouts that are config directories"},
	{Name: "gpg", Packages: "gpg gpg-agent", Reason: "sign and verify as vendors do"},
	{Name: "gzip", Packages: "gzip", Reason: "compare the rates of unpacking"},
	{Name: "ip", Packages: "iproute2", Reason: "connect nodes in network namespaces"},
	{Name: "kustomize", Module: Kustomize, Reason: "build the manifests of examples/kubernetes"},
	{Name: "minisign", Packages: "minisign", Reason: "sign and verify as vendors do"},
	{Name: "mkfs.btrfs", Packages: "btrfs-progs", Reason: "make a file system on which a rename needs space, and that shares blocks between files"},
	{Name: "mkfs.ext4", Packages: "e2fsprogs", Reason: "make a file system that does not share blocks"},
	{Name: "mkfs.xfs", Packages: "xfsprogs", Reason: "make a file system that shares blocks between files"},
	{Name: "mount", Packages: "mount", Reason: "mount small and read-only disks"},
	{Name: "nfpm", Module: NFPM, Reason: "make packages of Debian and rpm"},
	{Name: "nginx", Packages: "nginx", Extract: "usr/sbin/nginx", Reason: "serve the web page behind a reverse proxy"},
	{Name: "node", Packages: "nodejs", Reason: "upload with tus-js-client"},
	{Name: "npm", Packages: "npm", Reason: "install tus-js-client and axe-core"},
	{Name: "openssl", Packages: "openssl", Reason: "issue certificates as the documents show"},
	{Name: "pk12util", Packages: "libnss3-tools", Reason: "give the browser an authority and certificates"},
	{Name: "promtool", Packages: "prometheus", Extract: "usr/bin/promtool", Reason: "evaluate the rules and the dashboard of examples/prometheus"},
	{Name: "qemu-img", Packages: "qemu-utils", Reason: "write and check qcow2 images"},
	{Name: "qemu-io", Packages: "qemu-utils", Reason: "write into qcow2 images"},
	{Name: "rpm", Packages: "rpm", Reason: "install the package"},
	{Name: "runc", Packages: "runc", Reason: "run the daemon in containers as Kubernetes does"},
	{Name: "setpriv", Packages: "util-linux", Reason: "run the program without privileges"},
	{Name: "signify-openbsd", Packages: "signify-openbsd", Reason: "sign and verify as vendors do"},
	{Name: "ssh-keygen", Packages: "openssh-client", Reason: "sign commits and verify their signatures"},
	{Name: "systemd-analyze", Packages: "systemd", Reason: "check the units of examples/systemd, and boot a machine with the packages"},
	{Name: "tc", Packages: "iproute2", Reason: "limit the rate of links between nodes"},
	{Name: "tus-js-client", NPM: "testdata/tus", Reason: "upload as web pages do"},
	{Name: "unshare", Packages: "util-linux", Reason: "run the program without a network, and a machine in namespaces"},
	{Name: "versitygw", Module: Versitygw, Reason: "serve S3"},
	{Name: "xz", Packages: "xz-utils", Reason: "pack images for downloads"},
	{Name: "zstd", Packages: "zstd", Reason: "unpack the disks that Longhorn wrote"},
}

// Lookup returns the program of List with the name.
func Lookup(name string) (Program, bool) {
	i := slices.IndexFunc(List, func(p Program) bool { return p.Name == name })
	if i < 0 {
		return Program{}, false
	}
	return List[i], true
}
